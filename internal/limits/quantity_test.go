package limits

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParseQuantity_ReadsCommonForms(t *testing.T) {
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

func TestParseQuantity_RejectsHugeExponents(t *testing.T) {
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

func TestWritable_HasATextOfTheSameValue(t *testing.T) {
	t.Parallel()
	sum := func(n int, each string) resource.Quantity {
		total := resource.Quantity{}
		for range n {
			total.Add(resource.MustParse(each))
		}
		return total
	}
	for _, c := range []struct {
		q    resource.Quantity
		want string
	}{
		{sum(1, "100m"), "100m"}, {sum(3, "1Gi"), "3Gi"}, {sum(2, "600E"), "1200E"}, {sum(2, "500E"), "1e21"},
		{sum(10, "-200E"), "-2e21"}, {sum(2, "1e21"), "2e21"}, {sum(2, "4Ei"), "9223372036854775808"},
		{sum(256, "4Ei"), "1180591620717411303424"}, {sum(3, "1e1000"), "30e999"}, {sum(0, "1"), "0"},
	} {
		got := Writable(c.q)
		assert.Equal(t, c.want, got.String())
		assert.Zero(t, got.Cmp(c.q))
		back, err := ParseQuantity(got.String())
		require.NoError(t, err)
		assert.Zero(t, back.Cmp(c.q), c.want)
	}
}

func TestCheckWritable_RejectsQuantitiesThatTheirTextLoses(t *testing.T) {
	t.Parallel()
	suffixes := map[string]int{"E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "": 0}
	for suffix, power := range suffixes {
		for _, sign := range []string{"", "-", "+"} {
			for zeros := range 26 {
				for _, fraction := range []string{"", ".", ".000", ".5"} {
					text := sign + "1" + strings.Repeat("0", zeros) + fraction + suffix
					lost := zeros+power >= 21 && fraction != ".5"
					q, err := resource.ParseQuantity(text)
					require.NoError(t, err)
					if fraction == ".5" && zeros+power >= 21 {
						continue // a multiple of 10^21 or not, depending on the suffix
					}
					back, err := resource.ParseQuantity(q.String())
					require.NoError(t, err)
					require.Equal(t, lost, back.Cmp(q) != 0, text)
					require.Equal(t, lost, CheckWritable(text) != nil, text)
					if lost {
						require.True(t, SuspectQuantity([]byte(`{"a":"`+text+`"}`)), text)
						require.True(t, SuspectQuantity([]byte(`{"a":[" `+text+` "]}`)), text)
						require.True(t, SuspectQuantityIn([]byte("x"+text+"\x12")), text)
					}
				}
			}
		}
	}
	for _, text := range []string{"1200E", "1e21", "1E21", "1024Ei", "1e999", "x", "1000Ei", "1000Q"} {
		require.NoError(t, CheckWritable(text), text)
	}
	require.Error(t, CheckWritable("1e-999999999"))
}

func TestSuspectQuantity_FindsQuantitiesAnywhere(t *testing.T) {
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
		`8080`, `"resourceVersion":"123456789"`, `"1e999"`, `true1234`, ``, `1e12`, `"1000E1"`, `"x1000E"`,
		`"1000Ei"`, `"999E"`, `"2026-11-28T00:00:00.000000Z"`,
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
