// Package bounds keeps short texts from becoming large ones: YAML whose aliases multiply, quantities whose exponents
// make numbers of a billion digits. It holds pure functions, imports nothing of this project, and is what the API server
// and all of its clients ask before a library reads such a text.
package bounds
