package core_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/core"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestConnect_OptionsComeFromTheQuery(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	for _, c := range []struct {
		kind, subresource, query, path string
		want                           m
	}{
		{"Pod", "exec", "command=ls&command=-l&stdin=true&tty=0&stdout=false&stderr&container=a", "",
			m{"command": []string{"ls", "-l"}, "stdin": true, "stderr": true, "container": "a"}},
		{"Pod", "exec", "", "", m{"command": []string{}}},
		{"Pod", "attach", "stdin=1&command=ls", "", m{"stdin": true}},
		{"Pod", "portforward", "ports=80&ports=x&ports=443", "", m{"ports": []int64{80, 443}}},
		{"Pod", "proxy", "", "a/b", m{"path": "a/b"}},
		{"v1 Service", "proxy", "", "", m{"path": ""}},
		{"Node", "proxy", "", "logs", m{"path": "logs"}},
	} {
		query, err := url.ParseQuery(c.query)
		require.NoError(t, err)
		sub := kindtest.Of(t, c.kind).Subresource(c.subresource)
		require.Equal(t, c.want, sub.ConnectOptions(query, c.path), "%s/%s?%s", c.kind, c.subresource, c.query)
	}
}

// A stream is not admitted if its options are not registered.
func TestConnect_OnlyLogsHaveNoOptions(t *testing.T) {
	t.Parallel()
	for _, r := range core.Kinds() {
		for _, sub := range r.AllSubresources() {
			require.Equal(t, sub.Connect && sub.Name != "log", sub.ConnectOptions != nil, "%s/%s", r.Kind, sub.Name)
		}
	}
}
