package admission

import (
	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
)

// A policy or a webhook that changes an object may invalidate earlier decisions. The whole chain is then called a
// second time. Plugins of the table repeat their work. Policies and webhooks take part if their reinvocationPolicy
// is IfNeeded and the object has changed since they saw it. There is no third round.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#reinvocation-policy

// reinvocation is the state that the two rounds of one request's mutation share.
type reinvocation struct {
	// rewritten reports whether a policy or a webhook has changed the object, and again whether this is the second
	// round.
	rewritten, again bool
	policies         invoked[invocation]
	webhooks         invoked[string] // by UID
}

// invocation is one policy with one binding and one parameter.
type invocation struct{ policy, binding, param string }

// invoked are the policies or webhooks of one plugin that may be invoked a second time: fresh were invoked since
// the last change, stale before it.
type invoked[K comparable] struct {
	fresh, stale map[K]bool
	output       api.Object // the object after the plugin's round, if any may be invoked again
}

// changed marks all invoked so far as stale.
func (i *invoked[K]) changed() {
	if len(i.fresh) == 0 {
		return
	}
	if i.stale == nil {
		i.stale = map[K]bool{}
	}
	for k := range i.fresh {
		i.stale[k] = true
	}
	clear(i.fresh)
}

func (i *invoked[K]) note(k K) {
	if i.fresh == nil {
		i.fresh = map[K]bool{}
	}
	i.fresh[k] = true
}

// begin begins a round. Other plugins may have changed the object since the first one.
func (i *invoked[K]) begin(again bool, obj api.Object) {
	if again && len(i.fresh) > 0 && (i.output == nil || obj == nil || !equal.Semantic(i.output, obj)) {
		i.changed()
	}
}

// end ends the first round.
func (i *invoked[K]) end(obj api.Object) {
	if len(i.fresh) > 0 && obj != nil {
		i.output = obj.DeepCopyObject().(api.Object)
	}
}
