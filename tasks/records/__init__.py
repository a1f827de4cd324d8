"""Records of text files, tables, JSON and Hub data sets, read within memory bounds; files of earlier stages."""
