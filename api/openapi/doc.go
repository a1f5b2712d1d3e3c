// Package openapi describes the server's API in OpenAPI v2 and v3. kubectl explain, client-side validation,
// strategic merge and clients of server-side apply read these documents.
//
// They are built from the registrations and their Go types by reflection, on the first request. Reflection
// provides the structure (definitions.go); names, descriptions and formats come from methods of Kubernetes'
// types. Two facts are in source comments only: how lists merge, which is read from the schema that
// client-go ships for server-side apply (topology.go), and the few fields whose comment overrides their
// JSON tag (optionality.go).
//
// Paths and operations are built once as plain data (operations.go, parameters.go) and written in either
// dialect (v2.go, v3.go). Documents caches the serialized forms of the registry's current set, and gives
// each a hash that is known before the document is built.
//
// There is no HTTP here, and no I/O.
package openapi
