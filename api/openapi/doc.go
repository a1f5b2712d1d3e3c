// Package openapi describes the server's API in OpenAPI v2 and v3. kubectl explain, client-side validation,
// strategic merge and clients of server-side apply read these documents.
//
// They are built on the first request. Built-in kinds are described from their Go types by reflection. Reflection
// provides the structure (definitions.go); names, descriptions and formats come from methods of Kubernetes'
// types. Two facts are in source comments only: how lists merge, which is read from the schema that
// client-go ships for server-side apply (topology.go), and the few fields whose comment overrides their
// JSON tag (optionality.go).
//
// Custom kinds are described by their definitions (custom.go, customschema.go), in kube-apiserver's way. A
// definition is decoded while a document with its kind is built, and no earlier: hashes are of the definitions'
// bytes.
//
// Paths and operations are built once as plain data (operations.go, parameters.go) and written in either
// dialect (v2.go, v3.go), kind by kind (write.go). Documents caches the serialized forms of the registry's
// current set, and gives each a hash that is known before the document is built.
//
// There is no HTTP here, and no I/O.
package openapi
