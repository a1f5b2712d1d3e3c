// Package openapi describes what the server serves, in OpenAPI v2 and v3. kubectl explain,
// client-side validation, apply's strategic merge and server-side apply's clients all read
// these documents.
//
// They are made from the registrations and their Go types by reflection, when somebody
// first asks: a server that nobody asks pays nothing. What reflection gives is the shape
// (definitions.go); names, descriptions and formats come from methods that Kubernetes'
// types carry. Two things live in source comments only: how lists merge, which is read
// from the schema that client-go ships for server-side apply (topology.go), and the few
// fields whose comment overrules their JSON tag (optionality.go).
//
// Paths and operations are made once as plain data (operations.go, parameters.go) and
// written down in either dialect (v2.go, v3.go). Documents keeps the serialised forms of
// the registry's current set and names each by a hash that is known without building it.
//
// There is no HTTP here, and no I/O.
package openapi
