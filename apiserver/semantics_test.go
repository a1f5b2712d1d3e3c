package apiserver_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// The tables of "Semantics for get and list" and "Semantics for watch":
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions

// past is a collection with a history: it had a at revision one, a and b at two, and has a, b and c now. token
// continues after a at revision two.
type past struct {
	*server
	one, two, token string
}

func startPast(t *testing.T) past {
	s := start(t)
	p := past{server: s}
	s.create(configMaps, configMap("a"))
	p.one = s.get(configMaps).object().GetResourceVersion()
	s.create(configMaps, configMap("b"))
	page := s.get(configMaps + "?limit=1")
	p.two, p.token = page.object().GetResourceVersion(), page.at("metadata", "continue").(string)
	s.create(configMaps, configMap("c"))
	s.get(configMaps).ok(http.StatusOK) // memory has c
	return p
}

// query replaces ONE, TWO and TOKEN.
func (p past) query(text string) string {
	return strings.NewReplacer("ONE", p.one, "TWO", p.two, "TOKEN", p.token).Replace(text)
}

const (
	matchAlone = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is " +
		"provided"
	matchContinue = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided"
	exactZero     = `resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"`
)

func TestList_SemanticsOfResourceVersionMatchLimitAndContinue(t *testing.T) {
	t.Parallel()
	p := startPast(t)
	for query, want := range map[string]string{ // names; a + means that more pages follow
		// Without resourceVersionMatch.
		"":                            "a b c",
		"resourceVersion=0":           "a b c",
		"resourceVersion=ONE":         "a b c", // not older than
		"limit=2":                     "a b +",
		"limit=2&resourceVersion=0":   "a b +",
		"limit=1&resourceVersion=TWO": "a +", // exactly
		"limit=2&resourceVersion=ONE": "a",
		"continue=TOKEN":              "b",
		"continue=TOKEN&limit=1":      "b",
		"continue=TOKEN&limit=1&resourceVersion=0": "b",
		"limit=0":  "a b c",
		"limit=-1": "a b c",
		"limit=3":  "a b c",
		// Exact.
		"resourceVersionMatch=Exact&resourceVersion=ONE":         "a",
		"resourceVersionMatch=Exact&resourceVersion=TWO":         "a b",
		"resourceVersionMatch=Exact&resourceVersion=TWO&limit=1": "a +",
		// NotOlderThan.
		"resourceVersionMatch=NotOlderThan&resourceVersion=0":           "a b c",
		"resourceVersionMatch=NotOlderThan&resourceVersion=ONE":         "a b c",
		"resourceVersionMatch=NotOlderThan&resourceVersion=0&limit=1":   "a +",
		"resourceVersionMatch=NotOlderThan&resourceVersion=ONE&limit=2": "a b +",
	} {
		l := p.get(configMaps + "?" + p.query(query)).ok(http.StatusOK)
		got := l.names()
		if l.at("metadata", "continue") != nil {
			got = append(got, "+")
		}
		require.Equal(t, want, strings.Join(got, " "), query)
	}
	for query, words := range map[string]string{
		"resourceVersionMatch=Exact":                                           matchAlone,
		"resourceVersionMatch=NotOlderThan":                                    matchAlone,
		"resourceVersionMatch=Exact&limit=1":                                   matchAlone,
		"resourceVersionMatch=NotOlderThan&limit=1":                            matchAlone,
		"resourceVersionMatch=Exact&resourceVersion=0":                         exactZero,
		"resourceVersionMatch=Exact&resourceVersion=0&limit=1":                 exactZero,
		"resourceVersionMatch=Exact&continue=TOKEN":                            matchContinue,
		"resourceVersionMatch=Exact&continue=TOKEN&resourceVersion=0":          matchContinue,
		"resourceVersionMatch=Exact&continue=TOKEN&resourceVersion=ONE":        matchContinue,
		"resourceVersionMatch=NotOlderThan&continue=TOKEN":                     matchContinue,
		"resourceVersionMatch=NotOlderThan&continue=TOKEN&resourceVersion=0":   matchContinue,
		"resourceVersionMatch=NotOlderThan&continue=TOKEN&resourceVersion=ONE": matchContinue,
		"resourceVersionMatch=Newest&resourceVersion=ONE":                      `resourceVersionMatch: Unsupported value: "Newest"`,
		"sendInitialEvents=true": "sendInitialEvents: Forbidden: " +
			"sendInitialEvents is forbidden for list",
		"sendInitialEvents=false": "sendInitialEvents: Forbidden: " +
			"sendInitialEvents is forbidden for list",
	} {
		p.refusedOptions(query, words)
	}
	for query, words := range map[string]string{
		"continue=TOKEN&resourceVersion=ONE":         "specifying resource version is not allowed when using continue",
		"continue=TOKEN&resourceVersion=ONE&limit=1": "specifying resource version is not allowed when using continue",
		"continue=bogus!":                            "continue key is not valid",
		"continue=eyJydiI6MX":                        "continue key is not valid",
		"limit=abc":                                  `parsing "abc": invalid syntax`,
		"resourceVersion=abc":                        "resourceVersion",
		"resourceVersion=-5":                         "resourceVersion",
	} {
		p.get(configMaps+"?"+p.query(query)).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, words)
	}
}

// refusedOptions requires a 422 that names the option.
func (p past) refusedOptions(query, words string) {
	p.t.Helper()
	status := p.get(configMaps+"?"+p.query(query)).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		words)
	require.Contains(p.t, status.Message, `ListOptions.meta.k8s.io "" is invalid: `, query)
	require.Equal(p.t, metav1.GroupName, status.Details.Group)
	option, _, _ := strings.Cut(words, ":")
	require.True(p.t, slices.ContainsFunc(status.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == option
	}), "%s: %v", query, status.Details.Causes)
}

func TestGet_SemanticsOfResourceVersion(t *testing.T) {
	t.Parallel()
	p := startPast(t)
	for _, query := range []string{"", "resourceVersion=0", "resourceVersion=ONE", "resourceVersion=TWO"} {
		p.get(configMaps + "/c?" + p.query(query)).ok(http.StatusOK)
	}
	for _, query := range []string{"resourceVersion=abc", "resourceVersion=-1"} {
		p.get(configMaps+"/c?"+query).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "resourceVersion")
	}
}

func TestRead_WaitsForAFutureRevision(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, path := range []string{configMaps + "?resourceVersion=99999999",
		"/api/v1/namespaces/default?resourceVersion=99999999"} {
		status := s.get(path).refused(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
			"Too large resource version")
		require.Equal(t, metav1.CauseTypeResourceVersionTooLarge, status.Details.Causes[0].Type)
		require.EqualValues(t, 1, status.Details.RetryAfterSeconds)
	}
	e := s.watch(configMaps+"?watch=1&resourceVersion=99999999").expect("ERROR", "")
	require.EqualValues(t, http.StatusGatewayTimeout, e.Object.Object["code"])
	require.Equal(t, string(metav1.StatusReasonTimeout), e.Object.Object["reason"])
}

func TestWatch_SemanticsOfResourceVersionAndInitialEvents(t *testing.T) {
	t.Parallel()
	p := startPast(t)
	const streaming = "&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&sendInitialEvents="
	// The events before a change that is made once the watch is open; ! is the bookmark that ends the initial events.
	for query, want := range map[string]string{
		"":                                      "a b c",
		"resourceVersion=0":                     "a b c",
		"resourceVersion=TWO":                   "c",
		"resourceVersion=ONE":                   "b c",
		"limit=1&resourceVersion=TWO":           "c", // a watch ignores the limit
		streaming + "true":                      "a b c !",
		streaming + "true&resourceVersion=0":    "a b c !",
		streaming + "true&resourceVersion=ONE":  "a b c !",
		streaming + "false":                     "",
		streaming + "false&resourceVersion=0":   "",
		streaming + "false&resourceVersion=TWO": "c",
		strings.Replace(streaming, "&allowWatchBookmarks=true", "", 1) + "true": "a b c",
	} {
		w := p.watch(configMaps + "?watch=1&" + p.query(query))
		p.create(configMaps, configMap("z"))
		var got []string
		for {
			e, ok := w.next()
			require.True(t, ok)
			name := e.Object.GetName()
			if name == "z" {
				break
			}
			if e.Type == "BOOKMARK" {
				require.Equal(t, "true", e.Object.GetAnnotations()[metav1.InitialEventsAnnotationKey])
				name = "!"
			} else {
				require.Equal(t, "ADDED", e.Type)
			}
			got = append(got, name)
		}
		p.delete(configMaps+"/z", nil).ok(http.StatusOK)
		p.get(configMaps).ok(http.StatusOK) // memory is without z again
		require.Equal(t, want, strings.Join(got, " "), query)
	}
	const (
		unasked = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless " +
			"sendInitialEvents is provided"
		required = "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to " +
			"NotOlderThan"
	)
	for query, words := range map[string]string{
		"resourceVersionMatch=NotOlderThan":                                       unasked,
		"resourceVersionMatch=NotOlderThan&resourceVersion=ONE":                   unasked,
		"resourceVersionMatch=Exact&resourceVersion=ONE":                          unasked,
		"sendInitialEvents=true":                                                  required,
		"sendInitialEvents=false":                                                 required,
		"sendInitialEvents=true&resourceVersion=ONE":                              required,
		"sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=ONE":   required,
		"sendInitialEvents=false&resourceVersionMatch=Exact":                      `resourceVersionMatch: Unsupported value: "Exact"`,
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=TOKEN": matchContinue,
	} {
		p.refusedOptions("watch=1&"+query, words)
	}
}

// The answer to a token whose revision is compacted has a token that continues with the present state, for clients that
// accept pages of different states.
func TestList_ACompactedTokenReturnsAnother(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	for i := range 4 {
		a.create(configMaps, configMap(fmt.Sprintf("c%d", i)))
	}
	page := a.get(configMaps + "?limit=1").ok(http.StatusOK)
	token := page.at("metadata", "continue").(string)
	a.delete(configMaps+"/c1", nil).ok(http.StatusOK)
	for range 4 { // as many pages of other states as memory keeps
		a.create(configMaps, m{"metadata": m{"generateName": "d-"}})
		a.get(configMaps + "?limit=1").ok(http.StatusOK)
	}
	revision, err := a.backend.Revision(t.Context())
	require.NoError(t, err)
	require.NoError(t, a.backend.Compact(t.Context(), revision))
	status := a.get(configMaps+"?limit=1&continue="+token).refused(http.StatusGone, metav1.StatusReasonExpired,
		"continue parameter is too old")
	require.NotEmpty(t, status.Continue)
	next := a.get(configMaps + "?limit=1&continue=" + status.Continue).ok(http.StatusOK)
	require.Equal(t, []string{"c2"}, next.names())
	require.NotEqual(t, page.object().GetResourceVersion(), next.object().GetResourceVersion())
	rest := a.get(configMaps + "?limit=1&continue=" + next.at("metadata", "continue").(string)).ok(http.StatusOK)
	require.Equal(t, []string{"c3"}, rest.names())
	require.Equal(t, next.object().GetResourceVersion(), rest.object().GetResourceVersion())
}
