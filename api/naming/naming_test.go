package naming_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/naming"
)

// pairs maps names to our checks and apimachinery's.
var pairs = map[string][2]func(string) []string{
	"IsDNS1123Label":            {naming.IsDNS1123Label, utilvalidation.IsDNS1123Label},
	"IsDNS1123Subdomain":        {naming.IsDNS1123Subdomain, utilvalidation.IsDNS1123Subdomain},
	"NameIsDNSLabel":            {whole(naming.NameIsDNSLabel), whole(validation.NameIsDNSLabel)},
	"NameIsDNSLabel prefix":     {prefix(naming.NameIsDNSLabel), prefix(validation.NameIsDNSLabel)},
	"NameIsDNSSubdomain":        {whole(naming.NameIsDNSSubdomain), whole(validation.NameIsDNSSubdomain)},
	"NameIsDNSSubdomain prefix": {prefix(naming.NameIsDNSSubdomain), prefix(validation.NameIsDNSSubdomain)},
	"IsQualifiedName":           {naming.IsQualifiedName, utilvalidation.IsQualifiedName},
	"IsValidLabelValue":         {naming.IsValidLabelValue, utilvalidation.IsValidLabelValue},
	"IsConfigMapKey":            {naming.IsConfigMapKey, utilvalidation.IsConfigMapKey},
	"IsValidPercent":            {naming.IsValidPercent, utilvalidation.IsValidPercent},
	"IsValidPortName":           {naming.IsValidPortName, utilvalidation.IsValidPortName},
}

func whole(f func(string, bool) []string) func(string) []string {
	return func(s string) []string { return f(s, false) }
}

func prefix(f func(string, bool) []string) func(string) []string {
	return func(s string) []string { return f(s, true) }
}

func compare(t *testing.T, s string) {
	t.Helper()
	for name, pair := range pairs {
		require.Equal(t, pair[1](s), pair[0](s), "%s %q", name, s)
	}
}

func TestChecks_MatchApimachinery(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 14, 15, 16, 62, 63, 64, 65, 252, 253, 254, 255} {
		for _, s := range []string{"a", "A", "1", "-", "a.", "a-", "a/"} {
			long := strings.Repeat(s, n/len(s)+1)[:n]
			compare(t, long)
			compare(t, "example.com/"+long)
			compare(t, long+"/name")
			compare(t, long+"-")
		}
	}
	const alphabet = "aaz09AZ--..__//%= é\n"
	random := rand.New(rand.NewPCG(1, 2))
	for range 3_000 {
		s := make([]byte, random.IntN(8))
		for i := range s {
			s[i] = alphabet[random.IntN(len(alphabet))]
		}
		compare(t, string(s))
	}
}

func FuzzChecks(f *testing.F) {
	for _, s := range []string{"web", "web-1.example.com", "app.kubernetes.io/name", "--", "a..b", ".."} {
		f.Add(s)
	}
	f.Fuzz(compare)
}
