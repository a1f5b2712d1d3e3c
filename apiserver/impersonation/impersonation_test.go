package impersonation_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/impersonation"
)

func TestRights_OfEachPart(t *testing.T) {
	t.Parallel()
	caller := &authn.User{Name: "caller"}
	parts := func(wanted *authn.User) []string {
		var all []string
		for _, a := range impersonation.Rights(caller, wanted) {
			require.Equal(t, caller, a.User)
			require.Equal(t, "impersonate", a.Verb)
			all = append(all, fmt.Sprintf("%s/%s/%s %s/%s", a.Group, a.Resource, a.Subresource, a.Namespace, a.Name))
		}
		slices.Sort(all)
		return all
	}
	require.Equal(t, []string{
		"/groups/ /devs", "/groups/ /ops", "/users/ /jane",
		"authentication.k8s.io/uids/ /42",
		"authentication.k8s.io/userextras/example.com/scope /a",
		"authentication.k8s.io/userextras/example.com/scope /b",
	}, parts(&authn.User{Name: "jane", UID: "42", Groups: []string{"devs", "ops"},
		Extra: map[string][]string{"example.com/scope": {"a", "b"}}}))
	require.Equal(t, []string{"/serviceaccounts/ ns/robot"}, parts(&authn.User{Name: "system:serviceaccount:ns:robot"}))
	require.Equal(t, []string{"/users/ /system:serviceaccount:ns"},
		parts(&authn.User{Name: "system:serviceaccount:ns"}))
}
