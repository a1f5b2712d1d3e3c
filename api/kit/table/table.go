// Package table has the columns and cells that the server-side tables of several kinds share. X is a column, and XOf
// returns an object's cell in it.
package table

import (
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
)

const None = "<none>"
const Unset = "<unset>"
const Unknown = "<unknown>"

var (
	Name = metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
	Age = Column("Age", "string", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])

	Containers = Wide("Containers", "string", "Names of each container in the template.")
	Images     = Wide("Images", "string", "Images referenced by each container in the template.")
)

// Column returns a column that kubectl get always shows.
func Column(name, kind, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: kind, Description: description}
}

// Wide returns a column that only -o wide shows.
func Wide(name, kind, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: kind, Description: description, Priority: 1}
}

// AgeOf returns a cell with the time since t, as kubectl prints ages.
func AgeOf(t metav1.Time) any {
	if t.IsZero() {
		return Unknown
	}
	return api.Since(t.Time)
}

func MicroAgeOf(t metav1.MicroTime) any {
	return AgeOf(metav1.Time(t))
}

func OrNone(s string) string {
	if s == "" {
		return None
	}
	return s
}

func JoinOrNone(list []string) string {
	return OrNone(strings.Join(list, ","))
}

func LabelsOf(labels map[string]string) string {
	pairs := make([]string, 0, len(labels))
	for k, v := range labels {
		pairs = append(pairs, k+"="+v)
	}
	sort.Strings(pairs)
	return JoinOrNone(pairs)
}

// ContainersOf returns the names and the images of a template's containers.
func ContainersOf(containers []corev1.Container) (names, images string) {
	n, i := make([]string, len(containers)), make([]string, len(containers))
	for k, c := range containers {
		n[k], i[k] = c.Name, c.Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

func BoolOf(b *bool) string {
	switch {
	case b == nil:
		return Unset
	case *b:
		return "True"
	default:
		return "False"
	}
}

// FirstAnd returns up to three entries and the number of the others.
func FirstAnd(list []string, total int) string {
	const shown = 3
	if len(list) <= shown {
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(list[:shown], ","), total-shown)
}

// OwnerOf returns the name of an owner as kind.group/name.
func OwnerOf(owner *metav1.OwnerReference) string {
	resource := strings.ToLower(owner.Kind)
	if group, _, found := strings.Cut(owner.APIVersion, "/"); found {
		resource += "." + group
	}
	return resource + "/" + owner.Name
}

// CreatedAt and CreatedAtOf show the time of creation in tables without an age, such as that of roles.
var CreatedAt = Column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])

func CreatedAtOf(t metav1.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
