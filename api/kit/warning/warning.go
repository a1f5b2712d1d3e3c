// Package warning collects the warnings that accompany a successful write.
package warning

import (
	"fmt"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"

	"github.com/coxswain-dev/coxswain/api/field"
)

// List collects warnings. Each begins with a field's path.
type List []string

func (w *List) Add(path *field.Path, format string, args ...any) {
	*w = append(*w, path.String()+": "+fmt.Sprintf(format, args...))
}

// Address adds a warning if an IP address is not in canonical form.
func (w *List) Address(path *field.Path, ip string) {
	if netutils.ParseIPSloppy(ip) != nil {
		*w = append(*w, utilvalidation.GetWarningsForIP(path.Plain(), ip)...)
	}
}
