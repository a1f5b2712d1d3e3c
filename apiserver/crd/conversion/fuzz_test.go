package conversion

import (
	"testing"
)

// FuzzReadReview checks that an answer gives either a short error or a list of documents.
func FuzzReadReview(f *testing.F) {
	const version, uid = "apiextensions.k8s.io/v1", "u1"
	head := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{"uid":"u1",`
	for _, text := range []string{
		"", "null", "{}", head + `"result":{"status":"Success"},"convertedObjects":[{"kind":"A"},null,1]}}`,
		head + `"result":{"status":"Failed","message":"no"}}}`, head + `"convertedObjects":null}}`,
		head + `"convertedObjects":{}}}`, head + `"convertedObjects":[[[[`, `{"response":null}`,
		`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"ConversionReview","response":{"result":{"status":"Success"}}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found, err := readReview([]byte(text), version, uid)
		switch {
		case err == nil && (found == nil || found.n < len(found.first) || len(found.first) > maxDocuments):
			t.Fatalf("%q has %v", text, found)
		case err != nil && len(err.Error()) > 2*maxWords+1000:
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
	})
}
