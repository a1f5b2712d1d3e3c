package admission

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTable_IsInTheDocuments requires the list in docs/security.md to equal the table.
func TestTable_IsInTheDocuments(t *testing.T) {
	t.Parallel()
	var rows strings.Builder
	for _, r := range Table {
		is := "off"
		if r.Default {
			is = "on"
		}
		fmt.Fprintf(&rows, "| %s | %s | %s |\n", r.Name, is, r.Does)
	}
	doc, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	require.Contains(t, string(doc), rows.String(), "the list in docs/security.md should be\n%s", rows.String())
}
