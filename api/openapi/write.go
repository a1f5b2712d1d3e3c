package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// members are the members of a JSON object. A document is written member by member, so that of a thousand kinds only
// one at a time is in memory in another form.
type members struct {
	json []byte
	err  error // the first
}

// add appends a member.
func (m *members) add(name string, value any) {
	var data []byte
	var err error
	if own, ok := value.(json.Marshaler); ok {
		data, err = own.MarshalJSON() // encoding/json would parse the result again
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
	quoted, _ := json.Marshal(name) // a string cannot fail to encode
	m.json = append(append(m.json, quoted...), ':')
}

// addObject appends a member that is an object.
func (m *members) addObject(name string, object *members) {
	if m.err == nil {
		m.err = object.err
	}
	m.addName(name)
	m.json = slices.Grow(m.json, len(object.json)+2)
	m.json = append(append(append(m.json, '{'), object.json...), '}')
}

// object returns the finished object.
func (m *members) object() []byte {
	return append(append(append(make([]byte, 0, len(m.json)+2), '{'), m.json...), '}')
}

// write writes a definition and drops its schema, but keeps its name.
func (d *definitions) write(name string) {
	d.written.add(name, d.schemas[name])
	d.schemas[name] = nil
}

// all writes the definitions that are not written yet, and returns all of them.
func (d *definitions) all() *members {
	for _, name := range slices.Sorted(maps.Keys(d.schemas)) {
		if d.schemas[name] != nil {
			d.write(name)
		}
	}
	return &d.written
}
