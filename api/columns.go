package api

import (
	"fmt"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

const none = "<none>"
const unset = "<unset>"
const unknown = "<unknown>"

var (
	nameColumn = metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
	ageColumn = column("Age", "string", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])

	containersColumn = wide("Containers", "string", "Names of each container in the template.")
	imagesColumn     = wide("Images", "string", "Images referenced by each container in the template.")
)

// column is one that kubectl get always shows.
func column(name, kind, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: kind, Description: description}
}

// wide is a column that only -o wide shows.
func wide(name, kind, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: kind, Description: description, Priority: 1}
}

// age is how long ago t was, as kubectl prints ages.
func age(t metav1.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func microAge(t metav1.MicroTime) string {
	return age(metav1.Time(t))
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func joinOrNone(list []string) string {
	return orNone(strings.Join(list, ","))
}

// deref is the number pointed to, or 0.
func deref(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

func labelsCell(labels map[string]string) string {
	pairs := make([]string, 0, len(labels))
	for k, v := range labels {
		pairs = append(pairs, k+"="+v)
	}
	sort.Strings(pairs)
	return joinOrNone(pairs)
}

// containerCells are the names and the images of a template's containers.
func containerCells(containers []corev1.Container) (names, images string) {
	n, i := make([]string, len(containers)), make([]string, len(containers))
	for at, c := range containers {
		n[at], i[at] = c.Name, c.Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

func boolCell(b *bool) string {
	switch {
	case b == nil:
		return unset
	case *b:
		return "True"
	default:
		return "False"
	}
}

// firstAnd shows up to three entries and counts the rest.
func firstAnd(list []string, total int) string {
	const shown = 3
	if len(list) <= shown {
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(list[:shown], ","), total-shown)
}

// ownerCell names a controller as kind.group/name.
func ownerCell(owner *metav1.OwnerReference) string {
	resource := strings.ToLower(owner.Kind)
	if group, _, found := strings.Cut(owner.APIVersion, "/"); found {
		resource += "." + group
	}
	return resource + "/" + owner.Name
}
