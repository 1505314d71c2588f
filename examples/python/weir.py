"""Asks Weir before it works. It needs Python 3.9 or newer, and nothing else."""

import json
import os
import sys
import urllib.error
import urllib.request

URL = os.environ.get("WEIR_URL", "http://127.0.0.1:8787")
TOKEN = os.environ.get("WEIR_TOKEN", "")
# Longer than the deadlineMs of the policy (1 s), so that an answer by its onFailure still comes.
PATIENCE_S = 2.5


def limit(policy, key, cost=1, idempotency_key=None):
    """Returns the decision, also a denial. None: there is none, for whatever reason. Raises ValueError for a bad call."""
    call = {"policy": policy, "key": key, "cost": cost}
    if idempotency_key is not None:
        # With it, and only with it, a call may be repeated without being charged twice.
        call["idempotencyKey"] = idempotency_key
    request = urllib.request.Request(
        URL + "/v1/limit",
        data=json.dumps(call).encode(),
        headers={"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        if error.code == 422:
            raise ValueError(text) from None
        print(f"Weir answered {error.code}: {text}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"Weir did not answer: {error}", file=sys.stderr)
    return None


if __name__ == "__main__":
    for customer in sys.argv[1:]:
        decision = limit("payments", "customer:" + customer)
        if decision is None:
            # It was not counted. Who only shows a page would go on here.
            print(f"{customer}: try again later")
        elif decision["success"]:
            print(f"{customer}: paid, {decision['remaining']} left")
        else:
            print(f"{customer}: denied, again in {decision['retryAfterMs']} ms")
