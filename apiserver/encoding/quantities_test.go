package encoding

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestCheckQuantities_ChecksDuplicateNames(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	for _, c := range []struct{ doc, words string }{
		{`{"spec":{"overhead":{"memory":"1e99999","memory":"1"}}}`, "spec.overhead[memory]"},
		{`{"spec":{"overhead":{"memory":"1"},"overhead":{"memory":1e99999}}}`, "spec.overhead[memory]"},
		{`{"spec":{"volumes":[{},{"emptyDir":{"sizeLimit":" 1E+99999"}}]}}`, "spec.volumes[1].emptyDir.sizeLimit"},
		{`{"spec":{"unknown":[{"memory":"1e99999"}],"containers":null,"nodeName":"1e99999"},"metadata":{"labels":{"a":"1e99999"}}}`, ""},
		{`{"spec":{"containers":"1e99999","overhead":["1e99999"]}}`, ""},
		{`{"spec":{"overhead":{"memory":"1e99999`, ""},
		{`"1e99999"`, ""},
	} {
		err := CheckQuantities([]byte(c.doc), pod)
		if c.words == "" {
			require.NoError(t, err, c.doc)
		} else {
			require.ErrorContains(t, err, c.words)
		}
	}
}
