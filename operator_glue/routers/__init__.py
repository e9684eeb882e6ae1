"""The edge to the routers: asking their Pods for their lists, and for a change of them."""
