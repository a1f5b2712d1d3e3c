package aggregation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
	"github.com/coxswain-dev/coxswain/internal/backoff"
	"github.com/coxswain-dev/coxswain/storage"
)

const (
	// checkEvery is the interval between checks of a server unless an event triggers an earlier one.
	checkEvery = 30 * time.Second
	// checkTimeout limits each attempt of a check, which makes up to checkTries attempts.
	checkTimeout = 5 * time.Second
	checkTries   = 5
	// retryAfter is the first pause after a failed check. Pauses double up to checkEvery.
	retryAfter = 5 * time.Millisecond
	// checksAtOnce limits the number of servers checked in parallel.
	checksAtOnce = 5
)

// aggregatorUser is the user that checks and document requests are made as.
var aggregatorUser = &authn.User{Name: "system:kube-aggregator", Groups: []string{authn.GroupMasters}}

// verdict is the result of a check: the status, reason and message of the condition Available.
type verdict struct {
	status          apiregistrationv1.ConditionStatus
	reason, message string
}

// checker maintains the condition Available of one APIService until its link closes.
type checker struct {
	a    *Aggregation
	name string
	link *link
}

// run checks repeatedly until ctx ends or the link closes.
func (c *checker) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.link.open, cancel)()
	pause := backoff.Doubling(retryAfter, checkEvery)
	for {
		select {
		case c.a.checks <- struct{}{}:
		case <-ctx.Done():
			return
		}
		v := c.check(ctx)
		<-c.a.checks
		if ctx.Err() != nil {
			return
		}
		c.a.unavailable.set(c.name, v.status != apiregistrationv1.ConditionTrue)
		err := c.a.judge(ctx, c.name, c.link, v)
		if err != nil && !errors.Is(err, errOvertaken) && ctx.Err() == nil {
			c.a.Log.Warn("writing the status of an APIService", "name", c.name, "error", err)
		}
		wait := checkEvery
		if v.reason == "FailedDiscoveryCheck" || err != nil {
			wait = pause.Step()
		} else {
			pause = backoff.Doubling(retryAfter, checkEvery)
		}
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case <-c.link.wake:
			pause = backoff.Doubling(retryAfter, checkEvery)
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// check tests whether the server is reachable, in kube-aggregator's order and with its messages.
func (c *checker) check(ctx context.Context) verdict {
	target := &c.link.target
	failed := func(reason, format string, args ...any) verdict {
		return verdict{apiregistrationv1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
	}
	service, err := serviceresolver.Service(ctx, c.a.Services, target.namespace, target.name)
	if apierrors.IsNotFound(err) {
		return failed("ServiceNotFound", "service/%s in %q is not present", target.name, target.namespace)
	}
	unknown := verdict{apiregistrationv1.ConditionUnknown, "ServiceAccessError",
		fmt.Sprintf("service/%s in %q cannot be checked due to: %v", target.name, target.namespace, err)}
	if err != nil {
		return unknown
	}
	if service.Spec.Type == corev1.ServiceTypeClusterIP || service.Spec.Type == "" {
		port, err := serviceresolver.PortName(service, int64(target.port))
		if err != nil {
			return failed("ServicePortError", "service/%s in %q is not listening on port %d",
				target.name, target.namespace, target.port)
		}
		list, err := c.a.Services.EndpointSlices(ctx, target.namespace, target.name)
		switch {
		case err != nil:
			unknown.reason = "EndpointsAccessError"
			unknown.message = fmt.Sprintf("service/%s in %q cannot be checked due to: %v",
				target.name, target.namespace, err)
			return unknown
		case len(list) == 0:
			return failed("EndpointsNotFound", "cannot find endpointslices for service/%s in %q",
				target.name, target.namespace)
		case !slices.ContainsFunc(list, func(s *discoveryv1.EndpointSlice) bool { return isReady(s, port) }):
			return failed("MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q",
				target.name, target.namespace, port)
		}
	}
	if err := c.ask(ctx); err != nil {
		return failed("FailedDiscoveryCheck", "%s", err.Error())
	}
	return verdict{apiregistrationv1.ConditionTrue, "Passed", "all checks passed"}
}

// isReady reports whether a slice has a ready endpoint and a port with the given name.
func isReady(s *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Ready == nil || *e.Conditions.Ready
	}) && slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
		return (p.Name != nil && *p.Name == port || p.Name == nil && port == "") && p.Port != nil
	})
}

// ask requests the group and version once. If that fails, it makes the remaining attempts in parallel, since other
// endpoints may work. It returns nil if any attempt succeeds.
func (c *checker) ask(ctx context.Context) error {
	err := c.askOnce(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, checkTries-1)
	for range checkTries - 1 {
		go func() { results <- c.askOnce(ctx) }()
	}
	for range checkTries - 1 { // all of them, so that no attempt outlives the check
		if again := <-results; again == nil {
			err = nil
			cancel()
		} else if err != nil {
			err = again
		}
	}
	return err
}

// askOnce makes one attempt. Any 2xx status counts as success.
func (c *checker) askOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	host, err := c.link.address(ctx)
	if err != nil {
		return err
	}
	gv := c.link.gv
	checked := &url.URL{Scheme: "https", Host: host, Path: "/apis/" + gv.Group + "/" + gv.Version}
	res, err := c.a.get(ctx, c.link, checked, nil)
	if err != nil {
		return fmt.Errorf("failing or missing response from %v: %w", checked, err)
	}
	_, _ = io.CopyN(io.Discard, res.Body, maxHeader) // so that the connection can be reused
	_ = res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode >= 300 {
		return fmt.Errorf("failing or missing response from %v: bad status from %v: %d",
			checked, checked, res.StatusCode)
	}
	return nil
}

// get makes a request to a server as the aggregator itself. The caller closes the body.
func (a *Aggregation) get(ctx context.Context, through *link, at *url.URL, header http.Header) (*http.Response, error) {
	if through.err != nil {
		return nil, through.err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	as, err := identity(aggregatorUser)
	if err != nil {
		return nil, err
	}
	for _, h := range []http.Header{header, as, {"Via": {"1.1 " + a.self}}} {
		for name, values := range h {
			req.Header[name] = values
		}
	}
	return through.plain.RoundTrip(req)
}

// judge writes the verdict into the status of the APIService unless the status already contains it.
func (a *Aggregation) judge(ctx context.Context, name string, through *link, v verdict) error {
	o, err := a.Objects.Collection(a.res).Get(ctx, "", name, storage.At{Any: true})
	if err != nil {
		return ignore(err, storage.ErrNotFound)
	}
	s, err := a.decode(ctx, o)
	if err != nil || s.Spec.Service == nil || targetOf(&s.Spec) != through.target {
		return err // it leads elsewhere now
	}
	was := available(s)
	if was != nil && was.Status == v.status && was.Reason == v.reason && was.Message == v.message {
		return nil
	}
	to := apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: v.status, Reason: v.reason,
		Message: v.message, LastTransitionTime: metav1.NewTime(a.Clock.Now().UTC()).Rfc3339Copy()}
	writes, err := a.Objects.Update(ctx, a.res, o, "status", func(obj api.Object) {
		setCondition(obj.(*apiregistrationv1.APIService), to)
	})
	if err != nil || len(writes) == 0 {
		return err
	}
	if _, err := a.Objects.Commit(ctx, writes...); err != nil {
		if overtaken(err) {
			return errOvertaken
		}
		return err
	}
	if v.status != apiregistrationv1.ConditionTrue && (was == nil || was.Status == apiregistrationv1.ConditionTrue) {
		a.unavailable.count(name, v.reason)
	}
	a.Log.Info("an APIService's availability has changed", "name", name, "status", v.status, "reason", v.reason,
		"message", v.message)
	return nil
}

// errOvertaken means that another server or a user has written the APIService in the meantime.
var errOvertaken = errors.New("overtaken")

// ignore returns err unless it is ignored.
func ignore(err, ignored error) error {
	if errors.Is(err, ignored) {
		return nil
	}
	return err
}

// keepAvailable runs a checker for every Service that the APIServices name, until ctx ends. It watches Services and
// EndpointSlices only once there is such an APIService.
func (a *Aggregation) keepAvailable(ctx context.Context) {
	var checking, following sync.WaitGroup
	defer following.Wait()
	defer checking.Wait()
	for started := false; ; {
		more, changed := a.unchecked()
		for _, c := range more {
			checking.Go(func() { c.run(ctx) })
		}
		if len(more) > 0 && !started {
			started = true
			for _, kind := range []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Service"),
				discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")} {
				following.Go(func() { a.wakeOnChange(ctx, kind) })
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// unchecked returns checkers for the services that have none yet, and a channel that is closed when there may be
// more.
func (a *Aggregation) unchecked() (more []*checker, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if current := a.current.Load(); current != nil {
		for _, s := range current.services {
			if !s.link.checked {
				s.link.checked = true
				more = append(more, &checker{a, s.Name, s.link})
			}
		}
	}
	return more, a.changed
}

// wakeOnChange wakes the checkers when an object of the kind changes that their services depend on.
func (a *Aggregation) wakeOnChange(ctx context.Context, kind schema.GroupVersionKind) {
	res := a.Registry.Snapshot().Kind(kind)
	for res != nil && ctx.Err() == nil {
		watcher, err := a.Objects.Collection(res).Watch(ctx, storage.WatchRequest{Any: true})
		if err != nil {
			return // the store has closed
		}
		for err == nil {
			var events []storage.Event
			events, err = watcher.Next(ctx)
			for _, e := range events {
				a.wake(e.Object)
			}
		}
		watcher.Close()
		if errors.Is(err, storage.ErrUnavailable) {
			return
		}
	}
}

// wake wakes the checkers that depend on the given Service or EndpointSlice. It never blocks: a checker has at most
// one wake-up pending.
func (a *Aggregation) wake(o *storage.Object) {
	current := a.current.Load()
	if current == nil || o == nil {
		return
	}
	key := types.NamespacedName{Namespace: o.Key.Namespace, Name: o.Key.Name}
	if service, ok := o.Labels.Lookup(discoveryv1.LabelServiceName); ok {
		key.Name = service
	}
	for _, l := range current.links[key] {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}
