package load

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

const (
	jsonType      = "application/json"
	mergeType     = "application/merge-patch+json"
	strategicType = "application/strategic-merge-patch+json"
)

func podsPath(namespace string) string { return "/api/v1/namespaces/" + namespace + "/pods" }

func podName(n int) string { return fmt.Sprintf("pod-%06d", n) }

// selectable is the number of different values of the label "part".
const selectable = 100

// podTemplate is an object of 2 kB as users write it, cut at the places of its name and of the label "part".
type podTemplate struct{ beforeName, beforePart, rest []byte }

// newPod returns the template of a pod. It names a scheduler that does not exist, so that no component changes the
// pods.
func newPod(namespace string) podTemplate {
	env := make([]string, 12)
	for i := range env {
		env[i] = fmt.Sprintf(`{"name":"SETTING_%02d","value":"the value of setting number %02d"}`, i, i)
	}
	pod := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","namespace":%q,`+
		`"labels":{"app":"bench","part":"PART","turn":"0000000000000000000"},`+
		`"annotations":{"example.com/about":"A pod as they are found in clusters, with a few settings, probes, ports and volumes of its own."}},`+
		`"spec":{"schedulerName":"none","serviceAccountName":"default","automountServiceAccountToken":false,"terminationGracePeriodSeconds":0,`+
		`"containers":[{"name":"web","image":"registry.example.com/shop/web:1.4.2","args":["--listen=:8080","--log=json","--workers=4"],`+
		`"ports":[{"name":"http","containerPort":8080},{"name":"metrics","containerPort":9090}],"env":[%s],`+
		`"resources":{"requests":{"cpu":"100m","memory":"128Mi"},"limits":{"memory":"256Mi"}},`+
		`"readinessProbe":{"httpGet":{"path":"/ready","port":"http"},"periodSeconds":5},`+
		`"volumeMounts":[{"name":"cache","mountPath":"/var/cache/web"},{"name":"settings","mountPath":"/etc/web","readOnly":true}]},`+
		`{"name":"proxy","image":"registry.example.com/mesh/proxy:2.9","ports":[{"name":"mesh","containerPort":15001}],`+
		`"resources":{"requests":{"cpu":"10m","memory":"32Mi"}}}],`+
		`"volumes":[{"name":"cache","emptyDir":{}},{"name":"settings","configMap":{"name":"web-settings"}}]}}`,
		namespace, strings.Join(env, ","))
	return cutTemplate(pod)
}

// cutTemplate makes a template from an object that contains the words NAME and PART.
func cutTemplate(object string) podTemplate {
	beforeName, after, _ := strings.Cut(object, "NAME")
	beforePart, rest, _ := strings.Cut(after, "PART")
	return podTemplate{[]byte(beforeName), []byte(beforePart), []byte(rest)}
}

// named returns a new object with a name; n determines the value of its label "part".
func (t podTemplate) named(name string, n int) []byte {
	pod := make([]byte, 0, len(t.beforeName)+len(t.beforePart)+len(t.rest)+len(name)+4)
	pod = append(append(append(pod, t.beforeName...), name...), t.beforePart...)
	pod = append(append(pod, 'p'), strconv.Itoa(n%selectable)...)
	return append(pod, t.rest...)
}

// withNode returns a pod that is bound to a node.
func withNode(node string, pod []byte) []byte {
	const scheduler = `"schedulerName":"none",`
	return bytes.Replace(pod, []byte(scheduler), []byte(scheduler+`"nodeName":"`+node+`",`), 1)
}

// turnWidth is the length of the values of the label "turn". Every change sets another value of the same length, so
// that the bytes of a document can be changed in place.
const turnWidth = 19

var turnKey = []byte(`"turn":"`)

func turnPatch(n int64) []byte {
	return fmt.Appendf(nil, `{"metadata":{"labels":{"turn":"%0*d"}}}`, turnWidth, n)
}

// setTurn changes the label in a document. It returns false if the document does not have the label.
func setTurn(doc []byte, n int64) bool {
	i := bytes.Index(doc, turnKey)
	if i < 0 {
		return false
	}
	i += len(turnKey)
	copy(doc[i:i+turnWidth], fmt.Appendf(nil, "%0*d", turnWidth, n))
	return true
}

// turnOf returns the label of a document, or false if the document does not have it.
func turnOf(doc []byte) (int64, bool) {
	i := bytes.Index(doc, turnKey)
	if i < 0 || len(doc) < i+len(turnKey)+turnWidth {
		return 0, false
	}
	i += len(turnKey)
	n, err := strconv.ParseInt(string(doc[i:i+turnWidth]), 10, 64)
	return n, err == nil
}
