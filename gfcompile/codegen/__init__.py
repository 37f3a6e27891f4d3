"""fx graph -> Relax -> scheduled kernels -> arena -> C driver -> library, one file per stage."""
