package bounds

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParseQuantity_ReadsWhatPeopleWrite(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0", "1", "-1.5", "+2", "100m", "1Gi", "1e3", "1E-3", "12E", "1e+09", "1e0000000003",
		"0.3333333333333333333333", "1e999", "-1e-999"} {
		want, err := resource.ParseQuantity(text)
		require.NoError(t, err, text)
		got, err := ParseQuantity(text)
		require.NoError(t, err, text)
		assert.Zero(t, want.Cmp(got), text)
		assert.NoError(t, CheckQuantity(got.String()), text)
	}
	for _, text := range []string{"", "x", "1x", "e", "1e", "1e-", "1eabcdefgh", "1Kii"} {
		assert.NoError(t, CheckQuantity(text))
		_, err := ParseQuantity(text)
		assert.Error(t, err)
	}
}

func TestParseQuantity_RefusesWhatWouldNeverEnd(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"1e-999999999", "1e999999999", "-1E-99999999999999999999", "+.5e-2000", "1e00000000000000009999", "1e2000",
		strings.Repeat("1", 1<<20), "0." + strings.Repeat("0", 1<<20) + "1", strings.Repeat("9", 200) + "Ki",
	} {
		_, err := ParseQuantity(text)
		require.Error(t, err)
		for _, document := range []string{`{"a":"` + text + `"}`, `{"a":` + text + `}`, "[\"" + text + "\u00a0\"]",
			"[\" " + text + "\u2003\"]", text} {
			assert.True(t, SuspectQuantity([]byte(document)), "%.50s", document)
			assert.True(t, SuspectQuantityIn([]byte(document)), "%.50s", document)
		}
	}
}

func TestSuspectQuantity_WhereverItStands(t *testing.T) {
	t.Parallel()
	for before := range 9 {
		for after := range 9 {
			text := strings.Repeat(" ", before) + `"1e-1234"` + strings.Repeat(" ", after)
			assert.True(t, SuspectQuantity([]byte(text)), text)
			text = strings.Repeat("12 ", before) + `1e1234` + strings.Repeat(" 1", after)
			assert.True(t, SuspectQuantity([]byte(text)), text)
		}
	}
}

func TestSuspectQuantity_IsSeldomWrong(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"uid":"4e123456-8e1234-4000-81e4-1e1234567890"}`, `"sha256:1e1234567890abcdef"`, `"node1e12345x"`,
		`"release-2e2024"`, `"2026-11-22T15:00:00Z"`,
		`8080`, `"resourceVersion":"123456789"`, `"1e999"`, `true1234`, ``, `1e12`,
	} {
		assert.False(t, SuspectQuantity([]byte(text)), text)
	}
}

func BenchmarkSuspectQuantity(b *testing.B) {
	document := fmt.Appendf(nil, `{"containers":[%s{}]}`,
		strings.Repeat(`{"name":"web","image":"example.com/image@sha256:1234","ports":[{"containerPort":8080}]},`, 25))
	b.SetBytes(int64(len(document)))
	for b.Loop() {
		SuspectQuantity(document)
	}
}
