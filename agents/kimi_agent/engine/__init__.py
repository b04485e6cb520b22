"""All that is known of SGLang itself: its command line, log, process titles and HTTP interface."""
