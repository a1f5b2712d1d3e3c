package match

import (
	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
)

// A policy or a webhook that changes an object may invalidate earlier decisions. The whole chain is then called a
// second time. Plugins of the table repeat their work. Policies and webhooks take part if their reinvocationPolicy
// is IfNeeded and the object has changed since they saw it. There is no third round.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#reinvocation-policy

// Reinvocation is the state that the two rounds of one request's mutation share.
type Reinvocation struct {
	// Rewritten reports whether a policy or a webhook has changed the object, and Again whether this is the second
	// round.
	Rewritten, Again bool
	Policies         Invoked[Invocation]
	Webhooks         Invoked[string] // by UID
}

// Invocation is one policy with one binding and one parameter.
type Invocation struct{ Policy, Binding, Param string }

// Invoked are the policies or webhooks of one plugin that may be invoked a second time: fresh were invoked since the
// last change, Stale before it. In the second round, only stale ones are called.
type Invoked[K comparable] struct {
	fresh, Stale map[K]bool
	output       api.Object // the object after the plugin's round, if any may be invoked again
}

// Changed marks all invoked so far as stale.
func (i *Invoked[K]) Changed() {
	if len(i.fresh) == 0 {
		return
	}
	if i.Stale == nil {
		i.Stale = map[K]bool{}
	}
	for k := range i.fresh {
		i.Stale[k] = true
	}
	clear(i.fresh)
}

// Note adds one that was invoked just now.
func (i *Invoked[K]) Note(k K) {
	if i.fresh == nil {
		i.fresh = map[K]bool{}
	}
	i.fresh[k] = true
}

// Begin begins a round. Other plugins may have changed the object since the first one.
func (i *Invoked[K]) Begin(again bool, obj api.Object) {
	if again && len(i.fresh) > 0 && (i.output == nil || obj == nil || !equal.Semantic(i.output, obj)) {
		i.Changed()
	}
}

// End ends the first round.
func (i *Invoked[K]) End(obj api.Object) {
	if len(i.fresh) > 0 && obj != nil {
		i.output = obj.DeepCopyObject().(api.Object)
	}
}
