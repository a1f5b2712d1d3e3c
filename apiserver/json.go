package apiserver

import (
	"bytes"
	"reflect"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
	kjson "sigs.k8s.io/json"
)

// What JSON means is for Kubernetes' decoder to say (sigs.k8s.io/json): which names are known, which may not be there
// twice, what a number may be, and the words in which a client is told. The next encoding/json, which the
// standard library has from Go 1.27 on, takes a third of its time and refuses at least as much: what it
// accepts without reserve is what Kubernetes' decoder would make of it, and what it does not accept is read again.
// TestJSON_WhatIsQuickIsTheSame holds the two against each other.

// unmarshal reads JSON as Kubernetes does, into anything: names are case-sensitive, integers stay integers.
func unmarshal(doc []byte, into any) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(doc, into)
}

// unmarshalObject is unmarshal into a struct that has nothing in it yet.
func unmarshalObject(doc []byte, into any) error {
	if err := checkQuantities(doc, goType(into)); err != nil {
		return err
	}
	if json.Unmarshal(doc, into) == nil {
		return nil
	}
	empty(into)
	return unmarshal(doc, into)
}

// unmarshalStrict reads JSON into a struct that has nothing in it yet. strict are the fields that are unknown or
// there twice, which did not keep it from being read.
func unmarshalStrict(doc []byte, into any) (strict []error, err error) {
	if err := checkQuantities(doc, goType(into)); err != nil {
		return nil, err
	}
	if unmarshalKnown(doc, into) {
		return nil, nil
	}
	empty(into)
	return kjson.UnmarshalStrict(doc, into)
}

// unmarshalKnown reads JSON in which nothing is unknown, twice there or wrong, on top of what a struct has. It
// reports false, and leaves the struct half-read, where something is.
func unmarshalKnown(doc []byte, into any) bool {
	return checkQuantities(doc, goType(into)) == nil && json.Unmarshal(doc, into, known) == nil
}

var known = json.RejectUnknownMembers(true)

func empty(pointer any) { reflect.ValueOf(pointer).Elem().SetZero() }

// marshal appends an object's JSON to a buffer, byte for byte as encoding/json writes it.
func marshal(to *bytes.Buffer, obj any) error {
	return json.MarshalWrite(to, obj, jsonv1.DefaultOptionsV1())
}
