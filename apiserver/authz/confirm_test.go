package authz_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// memory is behind etcd: at revision 0, while etcd is at newest.
type memory struct {
	newest int64
	err    error
	asked  int
}

func (m *memory) Frontier() int64 { return 0 }

func (m *memory) Revision(context.Context) (int64, error) {
	m.asked++
	return m.newest, m.err
}

// answers are decisions in order.
type answers []authz.Decision

func (a *answers) Authorize(context.Context, *authz.Attributes) (authz.Decision, string, error) {
	next := (*a)[0]
	*a = (*a)[1:]
	return next, "", nil
}

func TestConfirmed_AsksAgainWhenMemoryWasBehind(t *testing.T) {
	t.Parallel()
	jane := &authn.User{Name: "jane", Groups: []string{authn.GroupAuthenticated}}
	nobody := &authn.User{Name: authn.Anonymous, Groups: []string{authn.GroupUnauthenticated}}
	for name, c := range map[string]struct {
		user    *authn.User
		memory  memory
		answers answers
		want    authz.Decision
		asked   int
	}{
		"allowed":           {jane, memory{newest: 1}, answers{authz.Allow}, authz.Allow, 0},
		"denied":            {jane, memory{newest: 1}, answers{authz.Deny}, authz.Deny, 0},
		"granted meanwhile": {jane, memory{newest: 1}, answers{authz.NoOpinion, authz.Allow}, authz.Allow, 1},
		"not granted": {jane, memory{newest: 1}, answers{authz.NoOpinion, authz.NoOpinion},
			authz.NoOpinion, 1},
		"memory was up to date":  {jane, memory{}, answers{authz.NoOpinion}, authz.NoOpinion, 1},
		"etcd does not answer":   {jane, memory{err: errors.New("no")}, answers{authz.NoOpinion}, authz.NoOpinion, 1},
		"without authentication": {nobody, memory{newest: 1}, answers{authz.NoOpinion}, authz.NoOpinion, 0},
	} {
		confirmed := authz.Confirmed{Rights: authz.Union{&c.answers}, Memory: &c.memory}
		got, _, err := confirmed.Authorize(t.Context(), &authz.Attributes{User: c.user, Verb: "get"})
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.asked, c.memory.asked, name)
		require.Empty(t, c.answers, name)
	}
}
