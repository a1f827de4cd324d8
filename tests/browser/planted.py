"""Text of a user that would do something if a page took it for more than text, and such that is hard to lay out."""

EVIL = (
    '"><b data-planted>x</b><script>window.planted=1</script><img src=x onerror=window.planted=2 data-planted>'
    "' onclick='window.planted=3 {{ 7*7 }} </style></title></svg><!-- \x1b[31mred\x1b[0m \u202e[a](javascript:1)"
)
LONG = "/home/somebody/" + "a-very-long-name-without-a-space" * 6
SHOWN = "<b data-planted>x</b><script>window.planted=1</script>"
"""What a reader sees of EVIL, in any page that shows it."""
