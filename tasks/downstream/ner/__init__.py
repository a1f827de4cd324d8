"""Named entities: a tag for each word, B- and I- with a type inside of entities and O outside."""
