package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// mergePatch applies an RFC 7396 merge patch to an object. Only what the patch names is
// taken apart; all else is carried over as bytes.
func mergePatch(doc, patch []byte) ([]byte, error) {
	var changes, members map[string]json.RawMessage
	if err := json.Unmarshal(patch, &changes); err != nil {
		return nil, fmt.Errorf("decoding the patch: %w", err)
	}
	if changes == nil {
		return nil, errors.New("the patch is null")
	}
	if kindOfJSON(doc) == '{' { // what is not an object gives way to one
		if err := json.Unmarshal(doc, &members); err != nil {
			return nil, fmt.Errorf("decoding the object: %w", err)
		}
	}
	if members == nil {
		members = map[string]json.RawMessage{}
	}
	for name, change := range changes {
		switch kindOfJSON(change) {
		case 'n':
			delete(members, name)
		case '{':
			merged, err := mergePatch(members[name], change)
			if err != nil {
				return nil, err
			}
			members[name] = merged
		default:
			members[name] = change
		}
	}
	return appendObject(make([]byte, 0, len(doc)+len(patch)), members)
}

// kindOfJSON is the first byte of a value without white space around it, as RawMessages are.
func kindOfJSON(value []byte) byte {
	if len(value) == 0 {
		return 0
	}
	return value[0]
}

func appendObject(buf []byte, members map[string]json.RawMessage) ([]byte, error) {
	buf = append(buf, '{')
	for i, name := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			buf = append(buf, ',')
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		buf = append(append(append(buf, key...), ':'), members[name]...)
	}
	return append(buf, '}'), nil
}
