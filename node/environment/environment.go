// Package environment resolves a container's environment variables and command, and the fields of the downward API.
// Values come from ConfigMaps, Secrets, Services, and the pod's fields and resources. The package reads the API and
// touches no file.
package environment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/util/fieldpath"
	utilresource "k8s.io/kubectl/pkg/util/resource"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/references"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Environment resolves the environment and command of a pod's containers. Pod.Status must have the pod's addresses.
type Environment struct {
	Client      kubernetes.Interface
	References  *references.References // nil reads everything from the API server
	Pod         *corev1.Pod
	Allocatable corev1.ResourceList
}

// Resolve returns a container's environment in the order of its definitions, and its command and arguments with
// $(NAME) replaced.
func (e *Environment) Resolve(ctx context.Context, c *corev1.Container) (env, argv []string, err error) {
	vars := &variables{values: map[string]string{}}
	if err := e.services(ctx, vars); err != nil {
		return nil, nil, err
	}
	for i := range c.EnvFrom {
		if err := e.from(ctx, &c.EnvFrom[i], vars); err != nil {
			return nil, nil, err
		}
	}
	for i := range c.Env {
		v := &c.Env[i]
		value, err := Expand(v.Value, vars.values)
		set := true
		if v.ValueFrom != nil {
			value, set, err = e.value(ctx, c, v.ValueFrom)
		}
		if err != nil {
			return nil, nil, err
		}
		if set {
			vars.set(v.Name, value)
		}
		if vars.size > maxStrings {
			return nil, nil, errTooLarge
		}
	}
	size := vars.size
	for _, part := range append(slices.Clone(c.Command), c.Args...) {
		if part, err = Expand(part, vars.values); err != nil {
			return nil, nil, err
		}
		if size += len(part) + 1; size > maxStrings {
			return nil, nil, errTooLarge
		}
		argv = append(argv, part)
	}
	return vars.list(), argv, nil
}

// Limits of the kernel (execve(2)) on environment and arguments: bytes of one string, and bytes of all of them. They
// are enforced during expansion, because variables that refer to variables grow exponentially.
const (
	maxString  = 128 << 10
	maxStrings = 2 << 20
)

var errTooLarge = runtime.ConfigError{Err: errors.New(
	"environment and arguments are larger than the kernel takes: 131072 " +
		"bytes each, 2097152 in all")}

// variables holds environment variables in the order of their definition; a later definition replaces the value.
type variables struct {
	order  []string
	values map[string]string
	size   int // of everything that was set, replaced values included
}

func (v *variables) set(name, value string) {
	if _, ok := v.values[name]; !ok {
		v.order = append(v.order, name)
	}
	v.values[name] = value
	v.size += len(name) + len(value) + 2
}

func (v *variables) list() []string {
	all := make([]string, len(v.order))
	for i, name := range v.order {
		all[i] = name + "=" + v.values[name]
	}
	return all
}

// Expand replaces $(NAME) by a variable's value. References to unknown names stay as they are, and $$ is a dollar.
// https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
func Expand(text string, values map[string]string) (string, error) {
	var out strings.Builder
	closed := true // whether the rest of the text may have a closing parenthesis
	for out.Len() <= maxString {
		at := strings.IndexByte(text, '$')
		if at < 0 || at == len(text)-1 {
			out.WriteString(text)
			break
		}
		out.WriteString(text[:at])
		text = text[at:]
		end := -1
		if closed && text[1] == '(' {
			end = strings.IndexByte(text, ')')
			closed = end > 0
		}
		switch {
		case text[1] == '$':
			out.WriteByte('$')
			text = text[2:]
		case end > 0:
			value, ok := values[text[2:end]]
			if !ok {
				value = text[:end+1]
			}
			out.WriteString(value)
			text = text[end+1:]
		default:
			out.WriteByte('$')
			text = text[1:]
		}
	}
	if out.Len() > maxString {
		return "", errTooLarge
	}
	return out.String(), nil
}

// from adds all entries of a ConfigMap or Secret.
func (e *Environment) from(ctx context.Context, f *corev1.EnvFromSource, vars *variables) error {
	data := map[string]string{}
	switch {
	case f.ConfigMapRef != nil:
		cm, err := e.configMap(ctx, f.ConfigMapRef.Name, f.ConfigMapRef.Optional)
		if err != nil {
			return err
		}
		data = cm.Data
	case f.SecretRef != nil:
		secret, err := e.secret(ctx, f.SecretRef.Name, f.SecretRef.Optional)
		if err != nil {
			return err
		}
		for key, value := range secret.Data {
			data[key] = string(value)
		}
	}
	keys := make([]string, 0, len(data))
	for key := range data {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if name := f.Prefix + key; !strings.ContainsAny(name, "=\x00") {
			vars.set(name, data[key])
		}
	}
	return nil
}

// value resolves a valueFrom; set is false if the source is optional and does not exist.
func (e *Environment) value(ctx context.Context, c *corev1.Container, s *corev1.EnvVarSource) (
	value string, set bool, err error) {
	switch {
	case s.FieldRef != nil:
		value, err = FieldValue(e.Pod, s.FieldRef.FieldPath)
		return value, true, err
	case s.ResourceFieldRef != nil:
		value, err = ResourceValue(e.Pod, c, s.ResourceFieldRef, e.Allocatable)
		return value, true, err
	case s.ConfigMapKeyRef != nil:
		ref := s.ConfigMapKeyRef
		cm, err := e.configMap(ctx, ref.Name, ref.Optional)
		if err != nil {
			return "", false, err
		}
		value, set = cm.Data[ref.Key]
		if !set && !ptr.Deref(ref.Optional, false) {
			return "", false,
				runtime.ConfigError{Err: fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key,
					e.Pod.Namespace, ref.Name)}
		}
		return value, set, nil
	case s.SecretKeyRef != nil:
		ref := s.SecretKeyRef
		secret, err := e.secret(ctx, ref.Name, ref.Optional)
		if err != nil {
			return "", false, err
		}
		bytes, set := secret.Data[ref.Key]
		if !set && !ptr.Deref(ref.Optional, false) {
			return "", false,
				runtime.ConfigError{Err: fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key,
					e.Pod.Namespace, ref.Name)}
		}
		return string(bytes), set, nil
	}
	return "", false, runtime.ConfigError{Err: fmt.Errorf("unsupported source of an environment variable: %v", s)}
}

// configMap returns a ConfigMap; an empty one if it is optional and does not exist.
func (e *Environment) configMap(ctx context.Context, name string, optional *bool) (*corev1.ConfigMap, error) {
	cm, err := e.References.ConfigMap(ctx, e.Client, e.Pod, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return nil, runtime.ConfigError{Err: err}
	}
	return cm, nil
}

func (e *Environment) secret(ctx context.Context, name string, optional *bool) (*corev1.Secret, error) {
	secret, err := e.References.Secret(ctx, e.Client, e.Pod, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return &corev1.Secret{}, nil
	}
	if err != nil {
		return nil, runtime.ConfigError{Err: err}
	}
	return secret, nil
}

// FieldValue returns a field of a pod as the downward API shows it.
// https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
func FieldValue(pod *corev1.Pod, path string) (string, error) {
	switch path {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return pod.Status.HostIP, nil
	case "status.podIP", "status.podIPs":
		return pod.Status.PodIP, nil
	}
	value, err := fieldpath.ExtractFieldPathAsString(pod, path)
	if err != nil {
		return "", runtime.ConfigError{Err: err}
	}
	return value, nil
}

// ResourceValue returns a container's request or limit; a limit that is not set is the node's allocatable.
func ResourceValue(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector,
	allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		for _, other := range runtime.Containers(pod) {
			if other.Name == ref.ContainerName {
				c = other
			}
		}
	}
	if c == nil {
		return "", runtime.ConfigError{Err: fmt.Errorf("no container %q", ref.ContainerName)}
	}
	c = c.DeepCopy()
	if c.Resources.Limits == nil {
		c.Resources.Limits = corev1.ResourceList{}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceEphemeralStorage} {
		if q, ok := allocatable[name]; ok && c.Resources.Limits.Name(name, q.Format).IsZero() {
			c.Resources.Limits[name] = q
		}
	}
	value, err := utilresource.ExtractContainerResourceValue(ref, c)
	if err != nil {
		return "", runtime.ConfigError{Err: err}
	}
	return value, nil
}

// services adds the variables that let containers find Services without DNS: the Services of the pod's namespace,
// unless enableServiceLinks is false, and always the API server's Service.
// https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
func (e *Environment) services(ctx context.Context, vars *variables) error {
	found := map[string]*corev1.Service{}
	var names []string
	add := func(namespace string, include func(*corev1.Service) bool) error {
		list, err := e.Client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return fmt.Errorf("services: %w", err)
		}
		for i := range list.Items {
			s := &list.Items[i]
			if ip := s.Spec.ClusterIP; ip == "" || ip == corev1.ClusterIPNone || !include(s) || found[s.Name] != nil {
				continue
			}
			found[s.Name] = s
			names = append(names, s.Name)
		}
		return nil
	}
	if links := e.Pod.Spec.EnableServiceLinks; links == nil || *links {
		if err := add(e.Pod.Namespace, func(*corev1.Service) bool { return true }); err != nil {
			return err
		}
	}
	if err := add(metav1.NamespaceDefault, func(s *corev1.Service) bool { return s.Name == "kubernetes" }); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		serviceVariables(found[name], vars)
	}
	return nil
}

func serviceVariables(s *corev1.Service, vars *variables) {
	if len(s.Spec.Ports) == 0 {
		return
	}
	upper := func(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
	prefix := upper(s.Name)
	vars.set(prefix+"_SERVICE_HOST", s.Spec.ClusterIP)
	vars.set(prefix+"_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port)))
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			vars.set(prefix+"_SERVICE_PORT_"+upper(p.Name), strconv.Itoa(int(p.Port)))
		}
	}
	for i, p := range s.Spec.Ports {
		protocol, port := strings.ToLower(string(p.Protocol)), strconv.Itoa(int(p.Port))
		url := protocol + "://" + net.JoinHostPort(s.Spec.ClusterIP, port)
		if i == 0 {
			vars.set(prefix+"_PORT", url)
		}
		link := prefix + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		vars.set(link, url)
		vars.set(link+"_PROTO", protocol)
		vars.set(link+"_PORT", port)
		vars.set(link+"_ADDR", s.Spec.ClusterIP)
	}
}
