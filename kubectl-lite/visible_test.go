package kubectllite

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

// plant puts hostile text into every string below v, and one element into each list and map.
func plant(v reflect.Value, depth int) {
	switch field := v.Addr().Interface().(type) {
	case *metav1.Time:
		*field = metav1.NewTime(time.Now().Add(-time.Hour))
		return
	case *metav1.MicroTime:
		*field = metav1.NewMicroTime(time.Now().Add(-time.Hour))
		return
	case *resource.Quantity:
		*field = resource.MustParse("1")
		return
	case *intstr.IntOrString:
		*field = intstr.FromString(clitest.HostileText)
		return
	case *metav1.LabelSelector:
		field.MatchLabels = map[string]string{"app": "web"}
		return
	case *metav1.FieldsV1:
		*field = *metav1.NewFieldsV1("{}")
		return
	}
	if depth > 15 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(clitest.HostileText)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		plant(v.Elem(), depth+1)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(clitest.HostileText))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		plant(v.Index(0), depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		plant(key, depth+1)
		plant(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				plant(v.Field(i), depth+1)
			}
		}
	}
}

// planted returns an object with hostile text in all fields for text; in its name too, if names is set.
func planted(t *testing.T, k fakeKind, names bool) map[string]any {
	obj := map[string]any{"spec": map[string]any{"text": clitest.HostileText}, "metadata": map[string]any{}}
	if k.typed != nil {
		typed := k.typed.DeepCopyObject()
		plant(reflect.ValueOf(typed).Elem(), 0)
		var err error
		obj, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
		require.NoError(t, err)
	}
	u := &unstructured.Unstructured{Object: obj}
	u.SetAPIVersion(k.apiVersion())
	u.SetKind(k.kind)
	u.SetResourceVersion("5")
	u.SetUID("uid")
	u.SetLabels(map[string]string{"app": "web", clitest.HostileText: clitest.HostileText})
	u.SetAnnotations(map[string]string{"deployment.kubernetes.io/revision": "1",
		"kubernetes.io/change-cause": clitest.HostileText, clitest.HostileText: clitest.HostileText})
	// a cycle of owners
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: clitest.HostileText, Name: clitest.HostileText,
		UID: "uid", Controller: ptr.To(true)}})
	u.SetDeletionTimestamp(nil)
	if !names {
		u.SetName("web")
		u.SetNamespace("default")
	}
	if k.kind == "Event" {
		_ = unstructured.SetNestedField(obj, "uid", "involvedObject", "uid")
		_ = unstructured.SetNestedField(obj, "Warning", "type")
	}
	if conditions, _, _ := unstructured.NestedSlice(obj, "status", "conditions"); len(conditions) > 0 {
		for _, kind := range []string{"Available", "ReplicaFailure", "PodScheduled", "Ready"} {
			conditions = append(conditions, map[string]any{"type": kind, "status": "False", "reason": clitest.HostileText,
				"message": "line\n" + clitest.HostileText})
		}
		_ = unstructured.SetNestedSlice(obj, conditions, "status", "conditions")
	}
	return obj
}

// hostile returns a handler for a server with hostile text in all objects, and in a warning of each answer. With
// refusing all its answers are errors.
func hostile(t *testing.T, names, refusing bool) func(http.ResponseWriter, *http.Request) bool {
	objects := map[string]map[string]any{}
	for _, k := range fakeKinds {
		objects[k.group+"/"+k.plural] = planted(t, k, names)
	}
	var asked atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Add("Warning", fmt.Sprintf("299 - \"\u009b31m\u202e number %d\"", asked.Add(1)))
		w.Header().Add("Warning", `299 - "=?UTF-8?q?=1b]0;owned=07?="`)
		review := func(status map[string]any) { respond(w, http.StatusCreated, map[string]any{"status": status}) }
		switch path := r.URL.Path; {
		case refusing && !strings.HasPrefix(path, "/openapi") && (&fakeServer{}).discovery(path) == nil:
			respond(w, http.StatusConflict, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status: "Failure", Code: http.StatusConflict, Reason: metav1.StatusReason(clitest.HostileText),
				Message: "line\n" + clitest.HostileText,
				Details: &metav1.StatusDetails{Name: clitest.HostileText, Kind: clitest.HostileText,
					Causes: []metav1.StatusCause{{Type: "x", Message: clitest.HostileText, Field: clitest.HostileText}}}})
		case path == "/version":
			respond(w, http.StatusOK, map[string]string{"major": kubeversion.Major, "minor": kubeversion.Minor,
				"gitVersion": kubeversion.Coxswain + clitest.HostileText})
		case path == "/apis/example.com/v1":
			respond(w, http.StatusOK, map[string]any{"kind": "APIResourceList", "apiVersion": "v1",
				"groupVersion": "example.com/v1", "resources": []any{
					map[string]any{"name": clitest.HostileText, "kind": clitest.HostileText, "singularName": clitest.HostileText,
						"shortNames": []string{clitest.HostileText}, "verbs": []string{"get", clitest.HostileText}},
				}})
		case strings.HasSuffix(path, "/log") && r.URL.Query().Get("tailLines") == "0":
		case strings.HasSuffix(path, "/log"):
			_, _ = w.Write([]byte(clitest.HostileText + "\n"))
		case strings.HasSuffix(path, "subjectaccessreviews"):
			review(map[string]any{"allowed": false, "reason": clitest.HostileText, "evaluationError": clitest.HostileText})
		case strings.HasSuffix(path, "selfsubjectrulesreviews"):
			review(map[string]any{"evaluationError": clitest.HostileText,
				"resourceRules": []any{map[string]any{"verbs": []string{clitest.HostileText},
					"apiGroups": []string{clitest.HostileText}, "resources": []string{clitest.HostileText}}}})
		case strings.HasSuffix(path, "selfsubjectreviews"):
			review(map[string]any{"userInfo": map[string]any{"username": clitest.HostileText, "uid": clitest.HostileText,
				"groups": []string{clitest.HostileText}, "extra": map[string]any{clitest.HostileText: []string{clitest.HostileText}}}})
		case strings.HasSuffix(path, "/leases"):
			respond(w, http.StatusOK, map[string]any{"metadata": map[string]any{"resourceVersion": "6"},
				"items": []any{map[string]any{"spec": map[string]any{"renewTime": "2026-01-01T00:00:00.000000Z"}}}})
		default:
			k, name, ok := locate(path)
			if !ok || r.Method == http.MethodDelete {
				return false
			}
			sendPlanted(w, r, k, objects[k.group+"/"+k.plural], name)
		}
		return true
	}
}

func sendPlanted(w http.ResponseWriter, r *http.Request, k fakeKind, obj map[string]any, name string) {
	later := (&unstructured.Unstructured{Object: obj}).DeepCopy()
	later.SetResourceVersion("6")
	later.SetAnnotations(map[string]string{"deployment.kubernetes.io/revision": "1",
		"kubernetes.io/change-cause": clitest.HostileText, clitest.HostileText: "other " + clitest.HostileText})
	list := map[string]any{"kind": k.kind + "List", "apiVersion": k.apiVersion(),
		"metadata": map[string]any{"resourceVersion": "6"}, "items": []any{later.Object}}
	switch query := r.URL.Query(); {
	case query.Get("watch") != "":
		respond(w, http.StatusOK, map[string]any{"type": "MODIFIED", "object": later.Object})
	case strings.Contains(r.Header.Get("Accept"), "as=Table"):
		respond(w, http.StatusOK, map[string]any{"kind": "Table", "apiVersion": "meta.k8s.io/v1",
			"metadata": map[string]any{"resourceVersion": "6"},
			"columnDefinitions": []any{map[string]any{"name": clitest.HostileText, "type": "string"},
				map[string]any{"name": "Age", "type": "string"}},
			"rows": []any{map[string]any{"cells": []any{clitest.HostileText, []string{clitest.HostileText}, clitest.HostileText},
				"object": map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
					"metadata": obj["metadata"]}}}})
	case r.Method == http.MethodGet && name == "" && query.Get("resourceVersionMatch") == "Exact":
		list["items"] = []any{obj}
		respond(w, http.StatusOK, list)
	case r.Method == http.MethodGet && name == "":
		respond(w, http.StatusOK, list)
	case r.Method == http.MethodPost:
		respond(w, http.StatusCreated, obj)
	default:
		respond(w, http.StatusOK, obj)
	}
}

// hostileLines are invocations of every command, by its path. Commands that print data unchanged have options for
// another output here, or are in notTried with the reason.
var hostileLines = map[string][]string{
	"get": {"pods", "pods -o wide --show-labels -L app", "pods,deploy", "pod web", "pods -w",
		"pods --server-print=false", "pods -o custom-columns=A:.metadata.annotations,B:.spec", "events",
		"deploy --sort-by=.metadata.name", "pods --at 5m", "pods -w --output-watch-events",
		"pods -o custom-columns=A:.metadata.annotations -w"},
	"describe": {"pod web", "deploy web", "node web", "svc web", "cm web", "secret web", "sa web", "ns web",
		"event web", "rs web", "pods", "pod we"},
	"tree": {"deploy web", "ns web"}, "why": {"deploy web", "pod web", "svc web", "node web", "-n default", "-A",
		"ns web"}, "timeline": {"cm web", "deploy web", "pod web"},
	"events": {"", "-A", "--for pod/web", "-w"}, "explain": {"pods", "pods.spec"},
	"diff": {"-f FILE", "--server-side -f FILE"}, "wait": {"pod/web --for=condition=Nope --timeout=20ms",
		"pod/web --for=jsonpath={.status.message}=x --timeout=20ms", "pod/web --for=delete --timeout=20ms",
		"pod/web --for=condition=Ready=false"},
	"apply": {"-f FILE", "--server-side -f FILE", "-f FILE --validate=false",
		"-f FILE --validate=false --dry-run=server"},
	"apply view-last-applied": {"cm none"}, "apply set-last-applied": {"-f FILE", "-f FILE --create-annotation"},
	"apply edit-last-applied": {"cm none"},
	"create":                  {"-f FILE --validate=false"}, "create namespace": {"web"},
	"create deployment":     {"web --image=i"},
	"create serviceaccount": {"web"},
	"create configmap":      {"web --from-literal=a=b"}, "create secret generic": {"web --from-literal=a=b"},
	"create secret tls":             {"web --cert=FILE --key=FILE"},
	"create secret docker-registry": {"web --docker-server=x --docker-username=x --docker-password=x"},
	"create service clusterip":      {"web --tcp=80"},
	"create service nodeport":       {"web --tcp=80"}, "create service loadbalancer": {"web --tcp=80"},
	"create service externalname": {"web --external-name=x"},
	"create ingress":              {"web --rule=a/b=c:80"}, "create job": {"web --image=i", "web --from=cronjob/web"},
	"create cronjob": {"web --image=i --schedule=*/1_*_*_*_*"},
	"create quota":   {"web --hard=pods=1"}, "create poddisruptionbudget": {"web --selector=a=b --min-available=1"},
	"create priorityclass":      {"web --value=1"},
	"create role":               {"web --verb=get --resource=pods"},
	"create clusterrole":        {"web --verb=get --resource=pods"},
	"create rolebinding":        {"web --role=x --user=x"},
	"create clusterrolebinding": {"web --clusterrole=x --user=x"}, "create token": {"web"},
	"replace": {"-f FILE --validate=false"}, "edit": {"cm none"}, "patch": {"cm web -p {\"data\":{\"a\":\"b\"}}",
		"cm web -p {\"data\":{\"a\":\"b\"}} --dry-run=client"},
	"set image": {"deploy/web *=x", "deploy/web nope=x"},
	"set env": {"deploy/web --list", "deploy/web --list --resolve", "deploy/web A=b",
		"deploy/web --from=configmap/web", "pod/web --list"},
	"set resources": {"deploy/web --limits=cpu=1"}, "set selector": {"svc web a=b"},
	"set subject": {"rolebinding web --user=x"}, "set serviceaccount": {"deploy/web x"},
	"label":    {"pod web --list", "pod web a=b", "pod web app=x", "pods --all a=b"},
	"annotate": {"pod web --list", "pod web a=b", "pods --all a-"},
	"expose":   {"svc web --port=80 --name=x", "deploy web --port=80"}, "ttl": {"pod/web 5m"},
	"delete": {"pod web --wait=false", "pods --all --wait=false", "pod web --timeout=20ms"},
	"run":    {"web --image=i"}, "scale": {"deploy/web --replicas=3", "deploy/web --replicas=3 --current-replicas=9"},
	"autoscale":       {"deploy/web --max=3"},
	"rollout status":  {"deploy/web --timeout=20ms", "deploy/web --watch=false"},
	"rollout history": {"deploy/web", "deploy/web --revision=1"},
	"rollout undo":    {"deploy/web", "deploy/web --dry-run=client"},
	"rollout pause":   {"deploy/web"}, "rollout resume": {"deploy/web"}, "rollout restart": {"deploy/web"},
	"logs":  {"web -c nope --tail=0"},
	"debug": {"web --image=i --attach=false -q", "web --image=i --target=nope"},
	"exec":  {"web -- date", "web -c nope -- date"}, "attach": {"web", "web -c nope"}, "port-forward": {"web :http"},
	"cp":     {"web:/nope FOLDER/x", "FILE web:/x"},
	"cordon": {"web"}, "uncordon": {"web"}, "drain": {"web --force --ignore-daemonsets --delete-emptydir-data " +
		"--timeout=20ms", "web"}, "taint": {"nodes web a=b:NoSchedule", "nodes web a:NoSchedule-"},
	"cluster-info": {""}, "cluster-info dump": {"--output-directory=FOLDER/dump"}, "top": {"node"}, "top node": {""},
	"top pod": {""},
	"audit":   {"FILE", "FILE web -o wide"}, "clock": {""}, "clock advance": {"1h", "--to=2031-05-01T08:00:00Z"},
	"api-resources": {"", "-o wide", "-o name"}, "api-versions": {""}, "auth can-i": {"get pods", "--list"},
	"auth whoami": {""}, "auth reconcile": {"-f FILE"},
	"certificate approve": {"web"}, "certificate deny": {"web"},
	"config view": {"", "--raw"}, "config current-context": {""}, "config get-contexts": {"", "-o name"},
	"config get-clusters": {""}, "config get-users": {""},
	"config use-context": {"nope"}, "config rename-context": {"nope other"}, "config delete-context": {"nope"},
	"config delete-cluster": {"nope"}, "config delete-user": {"nope"},
	"config set-context": {"nope"}, "config set-cluster": {"nope"}, "config set-credentials": {"nope"},
	"config set": {"a.b.c d"}, "config unset": {"a.b"},
	"kustomize": {"FOLDER"}, "options": {""}, "plugin list": {""}, "completion": {"bash"}, "version": {""},
	"help": {"get"},
}

// notTried are commands without a line in hostileLines.
var notTried = map[string]string{"proxy": "lasts, and prints nothing that a server sent",
	"kuberc set": "writes a file of the user's", "kuberc view": "prints a file of the user's"}

func leaves(cmd *cobra.Command, path string) (all []string) {
	for _, sub := range cmd.Commands() {
		full := strings.TrimSpace(path + " " + sub.Name())
		if sub.HasSubCommands() {
			all = append(all, leaves(sub, full)...)
		} else {
			all = append(all, full)
		}
	}
	return all
}

// escapedJSON returns a value as JSON in ASCII, which every YAML parser accepts.
func escapedJSON(t *testing.T, value any) []byte {
	text, err := json.Marshal(value)
	require.NoError(t, err)
	var b strings.Builder
	for _, r := range string(text) {
		if r < 0x7f {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String())
}

// hostileFiles writes a manifest and a kubeconfig for the server, both with hostile text.
func hostileFiles(t *testing.T, f *fakeServer) (folder, manifest, kubeconfig string) {
	folder = t.TempDir()
	manifest, kubeconfig = filepath.Join(folder, "file.yaml"), filepath.Join(folder, "config")
	text := escapedJSON(t, map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "web", "annotations": map[string]any{clitest.HostileText: clitest.HostileText}},
		"data":     map[string]any{"a": clitest.HostileText}})
	require.NoError(t, os.WriteFile(manifest, text, 0o600))
	text = escapedJSON(t, map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": clitest.HostileText,
		"clusters": []any{map[string]any{"name": clitest.HostileText, "cluster": map[string]any{"server": f.URL}}},
		"users":    []any{map[string]any{"name": clitest.HostileText, "user": map[string]any{}}},
		"contexts": []any{map[string]any{"name": clitest.HostileText, "context": map[string]any{"cluster": clitest.HostileText,
			"user": clitest.HostileText}}}})
	require.NoError(t, os.WriteFile(kubeconfig, text, 0o600))
	return folder, manifest, kubeconfig
}

func TestCommands_PrintNoControlCharacters(t *testing.T) {
	t.Parallel()
	for _, path := range leaves(New(genericiooptions.NewTestIOStreamsDiscard()), "") {
		_, tried := hostileLines[path]
		require.True(t, tried != (notTried[path] != ""), "hostileLines or notTried must name the command %q", path)
	}
	for name, mode := range map[string]struct{ names, refusing bool }{"objects": {}, "names": {names: true},
		"errors": {refusing: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeServer(t)
			f.streams = hostile(t, mode.names, mode.refusing)
			for _, path := range sortedKeys(hostileLines) {
				for _, line := range hostileLines[path] {
					t.Run(strings.ReplaceAll(path+" "+line, "/", "|"), func(t *testing.T) {
						t.Parallel()
						folder, manifest, kubeconfig := hostileFiles(t, f)
						fill := strings.NewReplacer("FILE", manifest, "FOLDER", folder, "_", " ")
						args := strings.Fields(path)
						for _, arg := range strings.Fields(line) {
							args = append(args, fill.Replace(arg))
						}
						got := clitest.Run(t, t.Context(), kubeconfig, "y\n", args...)
						clitest.RequireVisible(t, got.Out, args, "standard output")
						clitest.RequireVisible(t, got.ErrOut, args, "error output")
						if showing[path] && !mode.refusing || mode.refusing && strings.Contains(got.ErrOut, "(") &&
							path != "explain" { // which reads OpenAPI documents only: there are none
							require.Contains(t, got.Out+got.ErrOut, "^[", "the server's text is not there: %v", args)
						}
					})
				}
			}
		})
	}
}

// showing are commands that print text of objects with any options.
var showing = map[string]bool{"describe": true, "tree": true, "why": true, "timeline": true, "events": true,
	"rollout history": true,
	"api-resources":   true, "auth whoami": true, "auth can-i": true, "cluster-info": true, "version": true,
	"config current-context": true, "config get-contexts": true}

func TestData_IsPrintedUnchanged(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	f.streams = hostile(t, false, false)
	for line, want := range map[string]string{
		"get pod web -o jsonpath={.spec.nodeName}":                clitest.HostileText,
		"get cm web -o go-template={{range_.data}}{{.}}{{end}}":   clitest.HostileText,
		"get cm web --template={{range_.data}}{{.}}{{end}}":       clitest.HostileText,
		"label cm web a=b -o jsonpath={.data.*}":                  clitest.HostileText,
		"label cm web a=b --template={{range_.data}}{{.}}{{end}}": clitest.HostileText,
		"logs web": clitest.HostileText + "\n",
		"get --raw /api/v1/namespaces/default/pods/web/log": clitest.HostileText + "\n",
	} {
		args := strings.Fields(line)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_", " ")
		}
		got := f.run(t, "", args...)
		require.Equal(t, want, got.Out, "%s: %s", line, got.ErrOut)
		clitest.RequireVisible(t, got.ErrOut, line)
	}
	require.Contains(t, f.run(t, "", "get", "cm", "web", "-o", "json").Out, `\u001b]0;owned`)
}
