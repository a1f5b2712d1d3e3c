// Package openapi describes the server's API in OpenAPI v2 and v3. kubectl explain, client-side validation, strategic
// merge and clients of server-side apply read these documents.
//
// They are built on the first request. Built-in kinds are described from their Go types: reflection provides the
// structure (definitions.go), and methods of Kubernetes' types provide names, descriptions and formats. Two facts
// exist only in source comments. How lists merge is read from the schema that client-go ships for server-side apply
// (topology.go). Tables list the few fields with a comment that overrides their JSON tag (optionality.go).
//
// Custom kinds are described from their definitions (custom.go, customschema.go), in the same way as by
// kube-apiserver. A definition is decoded only while a document with its kind is built: hashes are computed from the
// definitions' bytes.
//
// Paths and operations are built once as plain data (operations.go, parameters.go) and written in either dialect
// (v2.go, v3.go), kind by kind (write.go). Documents caches the serialized forms of the registry's current set, and
// gives each a hash that is known before the document is built.
//
// There is no HTTP here, and no I/O.
package openapi
