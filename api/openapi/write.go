package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// members are the members of a JSON object. A document is written member by member, so that of a thousand kinds no more
// than one is in memory in any other form.
type members struct {
	json []byte
	err  error // the first
}

// add appends a member.
func (m *members) add(name string, value any) {
	var data []byte
	var err error
	if own, ok := value.(json.Marshaler); ok {
		data, err = own.MarshalJSON() // which encoding/json would read once more
	} else {
		data, err = json.Marshal(value)
	}
	if err != nil && m.err == nil {
		m.err = fmt.Errorf("openapi: writing %s: %w", name, err)
	}
	m.addName(name)
	m.json = append(m.json, data...)
}

// addName begins a member.
func (m *members) addName(name string) {
	if len(m.json) > 0 {
		m.json = append(m.json, ',')
	}
	quoted, _ := json.Marshal(name) // a string has no error
	m.json = append(append(m.json, quoted...), ':')
}

// addObject appends a member that is an object.
func (m *members) addObject(name string, of *members) {
	if m.err == nil {
		m.err = of.err
	}
	m.addName(name)
	m.json = slices.Grow(m.json, len(of.json)+2)
	m.json = append(append(append(m.json, '{'), of.json...), '}')
}

// object ends the object.
func (m *members) object() []byte {
	return append(append(append(make([]byte, 0, len(m.json)+2), '{'), m.json...), '}')
}

// write writes a definition and forgets it, but not that there is one of its name.
func (d *definitions) write(name string) {
	d.written.add(name, d.schemas[name])
	d.schemas[name] = nil
}

// all writes the definitions that are not yet written, and returns all of them.
func (d *definitions) all() *members {
	for _, name := range slices.Sorted(maps.Keys(d.schemas)) {
		if d.schemas[name] != nil {
			d.write(name)
		}
	}
	return &d.written
}
