package apiserver_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// mainPart is the part of a stored object that is written through the object itself, not through a subresource.
const mainPart = ""

// nothing means no part.
const nothing = "nothing"

// docPart is the part of a document that one subresource writes.
type docPart struct {
	take   func(doc m) any        // removes the part from the document and returns it
	change func(doc m, value int) // sets the part to one of many values
}

// docParts are the parts of all subresources except status and scale, by resource and subresource.
var docParts = map[string]docPart{
	"certificatesigningrequests/approval": {
		take: func(doc m) any {
			decided, others := decisions(doc)
			set(doc, others, "status", "conditions")
			return decided
		},
		change: func(doc m, value int) {
			_, others := decisions(doc)
			set(doc, append(others, signingCondition("Approved", value)), "status", "conditions")
		},
	},
	// The certificate, which never changes, counts as a part of the object itself.
	"certificatesigningrequests/status": {
		take: func(doc m) any { return taken(doc, "status", "conditions") },
		change: func(doc m, value int) {
			decided, _ := decisions(doc)
			set(doc, append(decided, signingCondition("Other", value)), "status", "conditions")
		},
	},
	"namespaces/finalize": {
		take:   func(doc m) any { return taken(doc, "spec", "finalizers") },
		change: func(doc m, value int) { set(doc, []any{fmt.Sprint("example.com/", value)}, "spec", "finalizers") },
	},
	"pods/ephemeralcontainers": {
		take: func(doc m) any { return taken(doc, "spec", "ephemeralContainers") },
		change: func(doc m, value int) {
			set(doc, []any{m{"name": fmt.Sprint("debugger-", value), "image": "busybox"}}, "spec",
				"ephemeralContainers")
		},
	},
	"pods/resize": {
		take: func(doc m) any {
			var resources []any
			for _, c := range doc["spec"].(m)["containers"].([]any) {
				resources = append(resources, taken(c.(m), "resources"), taken(c.(m), "resizePolicy"))
			}
			return append(resources, taken(doc, "spec", "resources"))
		},
		change: func(doc m, value int) {
			requests := m{"cpu": fmt.Sprint(1+value, "m")}
			set(doc, []any{m{"name": "main", "image": "nginx", "resources": m{"requests": requests}}},
				"spec", "containers")
		},
	},
}

// metadataParts are the fields of the client's metadata that Kubernetes' strategies of subresources keep, by resource
// and subresource. The strategies of other subresources reset all metadata, or begin with the stored object.
var metadataParts = map[string][]string{
	"apiservices/status":                  nil,
	"certificatesigningrequests/approval": allMetadata,
	"certificatesigningrequests/status":   allMetadata,
	"cronjobs/status":                     allMetadata,
	"customresourcedefinitions/status":    allMetadata,
	"daemonsets/status":                   allMetadata,
	"deployments/status":                  {"annotations", "finalizers", "ownerReferences"},
	"horizontalpodautoscalers/status":     allMetadata,
	"ingresses/status":                    allMetadata,
	"jobs/status":                         allMetadata,
	"namespaces/finalize":                 allMetadata,
	"namespaces/status":                   allMetadata,
	"nodes/status":                        allMetadata,
	"persistentvolumeclaims/status":       allMetadata,
	"persistentvolumes/status":            allMetadata,
	"poddisruptionbudgets/status":         allMetadata,
	"pods/status":                         {"labels", "annotations", "finalizers"},
	"replicasets/status":                  allMetadata,
	"replicationcontrollers/status":       allMetadata,
	"resourcequotas/status":               allMetadata,
	"servicecidrs/status":                 allMetadata,
	"services/status":                     allMetadata,
	"statefulsets/status":                 allMetadata,
	"devicetaintrules/status":             nil,
	"flowschemas/status":                  nil,
	"podcertificaterequests/status":       nil,
	"pods/ephemeralcontainers":            nil,
	"pods/resize":                         nil,
	"prioritylevelconfigurations/status":  nil,
	"resourceclaims/status":               nil,
	"storageversionmigrations/status":     nil,
	"validatingadmissionpolicies/status":  nil,
	"volumeattachments/status":            nil,
	"deployments/scale":                   nil,
	"replicasets/scale":                   nil,
	"replicationcontrollers/scale":        nil,
	"statefulsets/scale":                  nil,
}

var allMetadata = []string{"labels", "annotations", "finalizers", "ownerReferences"}

// decisions splits the conditions of a certificate signing request: those written to approval, and the others.
func decisions(doc m) (decided, others []any) {
	conditions, _, _ := unstructured.NestedSlice(doc, "status", "conditions")
	for _, c := range conditions {
		if kind := c.(m)["type"]; kind == "Approved" || kind == "Denied" {
			decided = append(decided, c)
		} else {
			others = append(others, c)
		}
	}
	return decided, others
}

func signingCondition(kind string, value int) m {
	const at = "2026-01-01T00:00:00Z"
	return m{"type": kind, "status": "True", "reason": fmt.Sprint("R", value), "lastUpdateTime": at,
		"lastTransitionTime": at}
}

// sharedParts are parts of one subresource that another may write as well.
var sharedParts = map[string]string{"certificatesigningrequests/approval": "status"}

func taken(doc m, path ...string) any {
	value, _, _ := unstructured.NestedFieldCopy(doc, path...)
	unstructured.RemoveNestedField(doc, path...)
	return value
}

func set(doc m, value any, path ...string) {
	if err := unstructured.SetNestedField(doc, value, path...); err != nil {
		panic(err)
	}
}

// TestSubresource_EachWriteChangesItsOwnPartOnly writes each built-in kind through the object itself and through each
// of its subresources, in every way, with the parts of all others changed as well. Validation is disabled, except for
// pods and for the status of certificate signing requests, which is rejected with another decision: other parts must
// be out of reach, and not only be found invalid.
func TestSubresource_EachWriteChangesItsOwnPartOnly(t *testing.T) {
	t.Parallel()
	kinds := builtin.Kinds()
	for _, r := range kinds {
		r.Permit = nil
		if r.Kind != "Pod" {
			r.Validate, r.ValidateCreate, r.ValidateUpdate = nil, nil, nil
		}
		if r.Status != nil && r.Kind != "CertificateSigningRequest" {
			r.Status.Validate, r.Status.Permit = nil, nil
		}
		for i := range r.Subresources {
			r.Subresources[i].Validate, r.Subresources[i].Permit = nil, nil
		}
	}
	// Without flow control, which maintains the status of flow schemas, only the test writes.
	s := assemble(t, kinds, apiserver.Options{Limits: apiserver.Limits{NoPriorityAndFairness: true}})
	s.create(accounts, m{"metadata": m{"name": "default"}})
	for _, r := range kinds {
		k := &partsTest{res: r}
		k.findParts(t)
		if len(k.names) == 1 || r.Kind == "CustomResourceDefinition" || r.Kind == "APIService" {
			continue // the server writes the status of these two
		}
		t.Run(r.Group+"/"+r.Version+"/"+r.Plural, func(t *testing.T) {
			t.Parallel()
			k.t, k.s = t, s.within(t)
			k.create()
			for _, through := range k.names {
				for _, way := range k.ways(through) {
					for _, of := range k.names {
						k.write(through, way, of)
					}
				}
			}
		})
	}
}

// filler sets every field of an object to a value that was not used before.
type filler struct{ values int }

func (f *filler) fill(v reflect.Value, depth int) {
	f.values++
	switch value := v.Addr().Interface().(type) {
	case *metav1.Time:
		*value = metav1.Unix(int64(f.values), 0)
		return
	case *metav1.MicroTime:
		value.Time = time.Unix(int64(f.values), 0)
		return
	case *resource.Quantity:
		*value = *resource.NewQuantity(int64(f.values), resource.DecimalSI)
		return
	case *intstr.IntOrString:
		*value = intstr.FromInt(f.values)
		return
	case *runtime.RawExtension:
		value.Raw = fmt.Appendf(nil, `{"a":%d}`, f.values)
		return
	case *metav1.ObjectMeta:
		return
	}
	if depth == 0 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("x", f.values))
	case reflect.Int32:
		v.SetInt(int64(f.values))
	case reflect.Int64: // an observedGeneration that is up to date
		v.SetInt(1<<40 + int64(f.values))
	case reflect.Uint8:
		v.SetUint(uint64(f.values % 100))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), depth-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0), depth-1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key, depth-1)
		f.fill(value, depth-1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i), depth-1)
		}
	}
}

// partsTest writes one kind through each of its paths.
type partsTest struct {
	t      *testing.T
	s      *server
	res    *api.Resource
	filler filler
	names  []string // mainPart, and the subresources that write a part of the object
	path   string
	writes int
}

// findParts fails the test if a subresource that writes a part of the object is not in docParts.
func (k *partsTest) findParts(t *testing.T) {
	t.Helper()
	k.names = []string{mainPart}
	for _, sub := range k.res.AllSubresources() {
		if sub.Copy == nil && sub.Name != "scale" {
			continue
		}
		_, listed := docParts[k.res.Plural+"/"+sub.Name]
		require.True(t, listed || sub.Name == "status" || sub.Name == "scale", "add %s/%s to docParts",
			k.res.Plural, sub.Name)
		require.Contains(t, metadataParts, k.res.Plural+"/"+sub.Name)
		k.names = append(k.names, sub.Name)
	}
}

func (k *partsTest) create() {
	k.t.Helper()
	obj := k.res.New()
	name := fillSample(k.t, obj, k.res.Kind)
	obj.SetName(strings.ToLower(k.res.Kind) + "-" + k.res.Version + "-" + name)
	obj.GetObjectKind().SetGroupVersionKind(k.res.GVK())
	k.path = collectionPath(k.res)
	doc, collection := document(k.t, obj), k.path
	k.s.create(k.path, doc)
	k.path += "/" + obj.GetName()
	if slices.Contains(k.names, "status") {
		delete(doc, "status")
		doc["metadata"] = m{"name": obj.GetName() + "-more"}
		without := k.s.create(collection+"?dryRun=All", doc).at("status")
		doc["status"] = k.changed("status")["status"]
		// a kubelet registers its Node with a status
		if with := k.s.create(collection+"?dryRun=All", doc).at("status"); k.res.Kind == "Node" {
			require.NotEqual(k.t, without, with)
		} else {
			require.Equal(k.t, without, with, "a new object of kind %s keeps a status", k.res.Kind)
		}
		// From here on the status is one that the server does not add fields to.
		k.s.patch(k.path+"/status", mergePatch, m{"status": k.changed("status")["status"]}).ok(http.StatusOK)
	}
}

// ways returns the methods and media types by which a subresource is written.
func (k *partsTest) ways(through string) []string {
	all := []string{"", jsonPatch, mergePatch, strategicPatch, "application/apply-patch+yaml",
		"application/apply-patch+cbor"}
	if through != mainPart && !slices.Contains(k.res.Subresource(through).Verbs, "patch") {
		return all[:1]
	}
	return all
}

// read returns the parts of the stored object.
func (k *partsTest) read() map[string]any {
	k.t.Helper()
	doc := k.s.get(k.path).ok(http.StatusOK).object().Object
	parts := map[string]any{}
	for _, name := range k.names {
		switch part, ok := docParts[k.res.Plural+"/"+name]; {
		case ok:
			parts[name] = part.take(doc)
		case name == "scale":
			parts[name] = taken(doc, "spec", "replicas")
		}
	}
	if _, listed := docParts[k.res.Plural+"/status"]; !listed {
		parts["status"] = taken(doc, "status")
	}
	for _, name := range allMetadata {
		parts["metadata."+name] = taken(doc, "metadata", name)
	}
	delete(doc, "metadata")
	parts[mainPart] = doc
	return parts
}

// changed returns the object with another value of one part.
func (k *partsTest) changed(of string) m {
	k.t.Helper()
	doc := k.s.get(k.path).ok(http.StatusOK).object().Object
	value := fmt.Sprintf("w%d", k.writes)
	meta := m{"name": doc["metadata"].(m)["name"], "labels": m{"write": value}, "annotations": m{"write": value},
		"finalizers":      []any{"example.com/" + value},
		"ownerReferences": []any{m{"apiVersion": "v1", "kind": "ConfigMap", "name": value, "uid": value}}}
	if k.res.Conditional {
		meta["resourceVersion"] = doc["metadata"].(m)["resourceVersion"]
	}
	doc["metadata"] = meta
	obj := k.res.New()
	k.filler.fill(reflect.ValueOf(obj).Elem(), 16)
	other := document(k.t, obj)
	switch part, ok := docParts[k.res.Plural+"/"+of]; {
	case ok:
		part.change(doc, k.writes)
	case of == nothing:
	case of == "scale":
		set(doc, int64(100+k.writes), "spec", "replicas")
	case of == "status":
		doc["status"] = other["status"]
	default:
		for member, value := range other {
			if member != "status" && member != "metadata" && member != "kind" && member != "apiVersion" {
				doc[member] = value
			}
		}
	}
	return doc
}

// write changes one part in a write through a path, and checks that only the path's own part may change.
func (k *partsTest) write(through, way, of string) {
	k.t.Helper()
	k.writes++
	before := k.read()
	stored := k.s.get(k.path).ok(http.StatusOK).object().Object
	body := k.changed(of)
	if through == "scale" {
		body = m{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": body["metadata"],
			"status": m{"replicas": 77, "selector": "a=b"},
			"spec":   m{"replicas": 100 + k.writes, "selector": m{"matchLabels": m{"a": "b"}}}}
		if strings.HasPrefix(way, "application/apply-patch") { // an apply configuration has only fields of a Scale
			body["spec"] = m{"replicas": 100 + k.writes}
		}
	}
	if through == of && of == mainPart {
		body = k.changed(nothing) // except for its label, since some random fields may not change together
	}
	if way == jsonPatch || way == mergePatch || way == strategicPatch { // a patch need not have unchanged fields
		maps.DeleteFunc(body, func(member string, value any) bool { return reflect.DeepEqual(value, stored[member]) })
	}
	answer := k.send(through, way, body)
	after := k.read()
	description := fmt.Sprintf("%s of %q by %q", k.res.Plural, of, way)
	decides := k.res.Kind == "CertificateSigningRequest" && through == "status" && of == "approval"
	switch refusable := k.res.Kind == "Pod" && (through == mainPart || of == "pods/resize") || decides; {
	case refusable && answer.code == http.StatusUnprocessableEntity:
	default:
		require.Equal(k.t, http.StatusOK, answer.code, "%s through %q: %s", description, through, answer.body)
	}
	if through == of && of != mainPart {
		require.NotEqual(k.t, before[of], after[of], "%s is not written", description)
	}
	for _, name := range allMetadata {
		written := through == mainPart || slices.Contains(metadataParts[k.res.Plural+"/"+through], name)
		if part := "metadata." + name; written && answer.code == http.StatusOK {
			require.NotEqual(k.t, before[part], after[part], "%s through %q has not changed %q", description, through, part)
		} else {
			require.Equal(k.t, before[part], after[part], "%s through %q has changed %q", description, through, part)
		}
	}
	for _, name := range k.names {
		if name != through && !(through == mainPart && of == "scale") && name != sharedParts[k.res.Plural+"/"+through] {
			require.Equal(k.t, before[name], after[name], "%s through %q has changed %q", description, through, name)
		}
	}
}

func (k *partsTest) send(through, way string, body m) *answer {
	k.t.Helper()
	path := k.path
	if through != mainPart {
		path += "/" + through
	}
	switch {
	case way == "":
		return k.s.put(path, body)
	case way == jsonPatch:
		var operations []m
		for member, value := range body {
			if member == "metadata" {
				for _, name := range allMetadata {
					operations = append(operations,
						m{"op": "add", "path": "/metadata/" + name, "value": value.(m)[name]})
				}
				continue
			}
			operations = append(operations, m{"op": "add", "path": "/" + member, "value": value})
		}
		return k.s.patch(path, way, operations)
	case strings.Contains(way, "apply"):
		delete(body["metadata"].(m), "resourceVersion")
		text, err := json.Marshal(body)
		if strings.Contains(way, "cbor") {
			text, err = cbor.Marshal(body)
		}
		require.NoError(k.t, err)
		return k.s.patch(fmt.Sprintf("%s?fieldManager=m%d&force=true", path, k.writes), way, text)
	}
	return k.s.patch(path, way, body)
}
