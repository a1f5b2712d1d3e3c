package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	portforwardconst "k8s.io/apimachinery/pkg/util/portforward"
	streamproto "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/apiserver/query"
)

// podLog serves a GET of a container's log.
func (px *Proxy) podLog(w http.ResponseWriter, r *Request) error {
	options, err := logOptions(r.Query)
	if err != nil {
		return err
	}
	if errs := checkLogOptions(options); len(errs) > 0 {
		return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), r.Name, errs)
	}
	pod, err := px.pod(r)
	if err != nil {
		return err
	}
	container, err := chooseContainer(pod, options.Container)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" { // it has not been scheduled: there is no log yet
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	target, err := px.kubelet(r.Context(), pod, logQuery(options), "containerLogs", pod.Namespace, pod.Name, container)
	if err != nil {
		return err
	}
	transport := px.kubelets
	if options.InsecureSkipTLSVerifyBackend {
		transport = px.unverified()
	}
	r.Request = r.Request.Clone(r.Context())
	r.Header.Del("Accept") // the client's Accept is for a Status; a log is text
	px.pass(w, r, passage{
		target: target, transport: transport, node: pod.Spec.NodeName,
		check: func(res *http.Response) error {
			if err := backendRefusal(res, r.Method, corev1.Resource("pods/log"), r.Name); err != nil {
				return err
			}
			res.Header = http.Header{"Content-Type": {"text/plain"}}
			return nil
		},
		failed: func(err error) error { return apierrors.NewInternalError(fmt.Errorf("Get %q: %w", target, err)) },
	})
	return nil
}

// pod returns the request's pod.
func (px *Proxy) pod(r *Request) (*corev1.Pod, error) {
	obj, err := px.objects.Object(r.Context(), r.Resource.GVK(), r.Namespace, r.Name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// logOptions parses corev1.PodLogOptions from a query.
func logOptions(q url.Values) (*corev1.PodLogOptions, error) {
	options := &corev1.PodLogOptions{
		Container: q.Get("container"),
		Follow:    query.Flag(q, "follow"), Previous: query.Flag(q, "previous"),
		Timestamps:                   query.Flag(q, "timestamps"),
		InsecureSkipTLSVerifyBackend: query.Flag(q, "insecureSkipTLSVerifyBackend"),
	}
	for name, into := range map[string]**int64{
		"sinceSeconds": &options.SinceSeconds, "tailLines": &options.TailLines, "limitBytes": &options.LimitBytes,
	} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid %s: %v", name, err))
		}
		*into = &n
	}
	if text := q.Get("sinceTime"); text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid sinceTime: %v", err))
		}
		sinceTime := metav1.NewTime(since)
		options.SinceTime = &sinceTime
	}
	return options, nil
}

func checkLogOptions(o *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines,
			"must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs,
			field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	return errs
}

// logQuery returns the query for the node's agent.
func logQuery(o *corev1.PodLogOptions) url.Values {
	q := url.Values{}
	for name, set := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if set {
			q.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines,
		"limitBytes": o.LimitBytes} {
		if n != nil {
			q.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	return q
}

// chooseContainer returns the named container, or the only one if none is named.
func chooseContainer(pod *corev1.Pod, name string) (string, error) {
	spec := &pod.Spec
	var names []string
	for i := range spec.InitContainers {
		names = append(names, spec.InitContainers[i].Name)
	}
	for i := range spec.Containers {
		names = append(names, spec.Containers[i].Name)
	}
	for i := range spec.EphemeralContainers {
		names = append(names, spec.EphemeralContainers[i].Name)
	}
	switch {
	case name == "" && len(spec.Containers) == 1:
		return spec.Containers[0].Name, nil
	case name == "":
		return "", apierrors.NewBadRequest(
			fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", pod.Name, names))
	case !slices.Contains(names, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	}
	return name, nil
}

// podStream opens a stream to a container (exec, attach) or to a pod's ports.
func (px *Proxy) podStream(w http.ResponseWriter, r *Request) error {
	pod, err := px.pod(r)
	if err != nil {
		return err
	}
	path, query := []string{"portForward", pod.Namespace, pod.Name}, url.Values{}
	if r.Subresource == "portforward" {
		if ports := r.Query["ports"]; len(ports) > 0 {
			query["port"] = ports
		}
	} else {
		container, err := chooseContainer(pod, r.Query.Get("container"))
		if err != nil {
			return err
		}
		path = []string{r.Subresource, pod.Namespace, pod.Name, container}
		query = streamQuery(r.Query, r.Subresource)
	}
	if pod.Spec.NodeName == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", r.Name))
	}
	if !isUpgrade(r.Request) {
		return apierrors.NewBadRequest("Upgrade request required")
	}
	target, err := px.kubelet(r.Context(), pod, query, path...)
	if err != nil {
		return err
	}
	tunneled, translated := offers(r.Request, portforwardconst.WebsocketsSPDYTunnelingPortForwardV1),
		offers(r.Request, streamproto.StreamProtocolV5Name)
	if tunneled || translated {
		if direct, err := px.declares(r.Context(), pod.Spec.NodeName, speaksWebSocket); err != nil || direct {
			tunneled, translated = false, false
		}
	}
	switch {
	case tunneled && r.Subresource == "portforward":
		return px.tunnel(w, r, target, pod.Spec.NodeName)
	case translated && r.Subresource != "portforward":
		return px.translate(w, r, target, pod.Spec.NodeName, query)
	}
	px.pass(w, r, passage{
		target: target, transport: px.kubelets, node: pod.Spec.NodeName,
		failed: func(err error) error {
			return apierrors.NewInternalError(fmt.Errorf("error dialing backend: %w", err))
		},
	})
	return nil
}

// streamQuery converts PodExecOptions and PodAttachOptions to the agents' parameters.
func streamQuery(q url.Values, subresource string) url.Values {
	agent := url.Values{}
	for option, name := range map[string]string{"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"} {
		on := query.Flag(q, option)
		if _, present := q[option]; !present && subresource == "attach" {
			on = option == "stdout" || option == "stderr" // the defaults of an attach
		}
		if on {
			agent.Set(name, "1")
		}
	}
	if command := q["command"]; subresource == "exec" && len(command) > 0 {
		agent["command"] = command
	}
	return agent
}
