"""Follows a target over the REST interface of Google's emulator, and writes entities there:
one for each line of input, which holds an id and the seconds of its expiry. It prints the
key of each. emulator_test.go runs it."""

import json
import sys
import urllib.error
import urllib.request
from datetime import datetime, timezone

from reaper_writer import follow

MODE, HOST, PROJECT = sys.argv[1:]
BASE = f"http://{HOST}/v1/projects/{PROJECT}"
DOCUMENTS = f"{BASE}/databases/(default)/documents"


def call(method, url, body=None):
    request = urllib.request.Request(url, method=method, data=body and json.dumps(body).encode(),
                                     headers={"Authorization": "Bearer owner", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def value(v):
    if "integerValue" in v:
        return int(v["integerValue"])
    if "arrayValue" in v:
        return [value(one) for one in v["arrayValue"].get("values", [])]
    if "mapValue" in v:
        return fields(v["mapValue"].get("fields", {}))
    if "entityValue" in v:
        return fields(v["entityValue"].get("properties", {}))
    return v.get("stringValue", v.get("booleanValue", v.get("doubleValue")))


def fields(named):
    return {name: value(v) for name, v in named.items()}


def read():
    if MODE == "native":
        document = call("GET", f"{DOCUMENTS}/ReaperTarget/sessions")
        return document and fields(document["fields"])
    answer = call("POST", f"{BASE}:lookup", {"keys": [{"path": [{"kind": "ReaperTarget", "name": "sessions"}]}]})
    found = answer.get("found")
    return fields(found[0]["entity"]["properties"]) if found else None


def write(id, key):
    values = {"expiry_key": {"stringValue": key}}
    if MODE == "native":
        call("PATCH", f"{DOCUMENTS}/Session/{id}", {"fields": values})
        return
    upsert = {"key": {"path": [{"kind": "Session", "name": id}]}, "properties": values}
    call("POST", f"{BASE}:commit", {"mode": "NON_TRANSACTIONAL", "mutations": [{"upsert": upsert}]})


def main():
    with follow(read, on_error=lambda error: print(repr(error), file=sys.stderr)) as follower:
        for line in sys.stdin:
            id, seconds = line.rstrip("\n").split("\t")
            key = follower.key(id, datetime.fromtimestamp(int(seconds), timezone.utc))
            write(id, key)
            print(key, flush=True)


main()
