"""Named entity recognition: a tag for each word, B- and I- with a type inside entities and O outside."""
