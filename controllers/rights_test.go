package controllers_test

import (
	"cmp"
	"go/types"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/testenv"
)

// isWrite reports whether a request changes something.
func (r request) isWrite() bool { return !slices.Contains([]string{"get", "list", "watch"}, r.verb) }

// updated maps requests for objects that a controller may update only by name to the name, which the source
// does not show.
var updated = map[string]string{"bootstrap-signer-controller: update configmaps": "cluster-info"}

// confined are the namespaces of controllers that write in one only, where the source does not show it.
var confined = map[string]string{"cluster-dns-controller": metav1.NamespaceSystem}

// TestRights_CoverEveryRequestOfEachController takes the requests from the source, so that none is missed, and
// asks the server whether the controller's own account may make them. The other tests, which use the
// controllers' accounts too, check the answers.
func TestRights_CoverEveryRequestOfEachController(t *testing.T) {
	t.Parallel()
	source, err := readProgram()
	require.NoError(t, err)
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.OrExternal(), testenv.APIServerOnly()))
	reviewed := map[authorizationv1.ResourceAttributes]map[string]bool{}
	for _, row := range controllers.Rows() {
		user, groups := "system:kube-controller-manager", []string{"system:authenticated"}
		if row.Account != "" {
			user = "system:serviceaccount:kube-system:" + row.Account
			groups = append(groups, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		}
		requests, errs := source.of(source.constructor(t, row.Package))
		for _, err := range errs {
			t.Errorf("%s: %v", row.Name, err)
		}
		if !slices.ContainsFunc(requests, request.isWrite) {
			t.Errorf("%s: no write found in its code: this test does not recognize its requests", row.Name)
		}
		for _, r := range requests {
			if name := updated[row.Name+": "+r.String()]; name != "" {
				r.name = name
			}
			r.namespace = cmp.Or(r.namespace, confined[row.Name])
			attributes := authorizationv1.ResourceAttributes{Verb: r.verb, Group: r.group, Resource: r.resource,
				Subresource: r.subresource, Namespace: r.namespace, Name: r.name}
			if reviewed[attributes] == nil {
				reviewed[attributes] = map[string]bool{}
			}
			if reviewed[attributes][user] {
				continue
			}
			reviewed[attributes][user] = true
			review, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
				&authorizationv1.SubjectAccessReview{
					Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups,
						ResourceAttributes: &attributes},
				}, metav1.CreateOptions{})
			require.NoError(t, err)
			if !review.Status.Allowed {
				t.Errorf("%s: %s: %s has no right to %s", row.Name, r.at, user, r)
			}
		}
	}
}

func (p *program) constructor(t testing.TB, folder string) *types.Func {
	t.Helper()
	pkg := p.packages[here+"/"+folder]
	require.NotNil(t, pkg, folder)
	constructor, ok := pkg.Scope().Lookup("New").(*types.Func)
	require.True(t, ok, "%s has no New", folder)
	return constructor
}

// TestRequests_AreFoundInTheCode checks the reading of the source, with controllers that use the client in
// different ways.
func TestRequests_AreFoundInTheCode(t *testing.T) {
	t.Parallel()
	source, err := readProgram()
	require.NoError(t, err)
	for folder, want := range map[string]string{
		"podgc":         "delete pods, get nodes, patch pods/status",
		"tainteviction": "delete pods, update pods/status",
		"replicaset": "create pods, delete pods, get replicasets apps, patch pods, update " +
			"replicasets/status apps",
		"replicationcontroller": "create pods, delete pods, get replicationcontrollers, patch pods, update " +
			"replicationcontrollers/status",
		"storagemigration": "list widgets example.com, patch widgets example.com, patch widgets/status example.com, " +
			"update storageversionmigrations/status storagemigration.k8s.io",
	} {
		requests, errs := source.of(source.constructor(t, folder))
		require.Empty(t, errs)
		var found []string
		for _, r := range requests {
			found = append(found, r.String())
		}
		slices.Sort(found)
		require.Equal(t, want, strings.Join(slices.Compact(found), ", "), folder)
	}
}
