"""Methods by name: a factory (target, parts) -> Method."""

METHODS = {
    "idem": "demx.methods.idem:idem",
    "pdem": "demx.methods.idem:pdem",
}
