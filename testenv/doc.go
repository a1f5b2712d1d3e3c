// Package testenv gives a Go test a control plane of its own: an API server, controllers, the scheduler and simulated
// Nodes, all in the test's process and gone with the test.
//
//	func TestOperator(t *testing.T) {
//		env := testenv.StartEnvironment(t, testenv.WithCRDs("config/crd"))
//		mgr, err := ctrl.NewManager(env.Config, ctrl.Options{})
//		...
//	}
//
// Deployments come up, namespaces are really deleted, garbage is collected. Any number of control planes may run at
// once, in parallel tests too; nothing is downloaded, no port is fixed, and when a test fails, its log gets a Report
// of what was not ready and why. NewEnvironment is for suites that have no testing.T.
//
// # Who asks
//
// Environment.Config is an administrator's. RBAC is on, so that an operator should run with no more rights than it has
// in its cluster: Environment.ServiceAccount is a configuration with a token of an account, Environment.User one of any
// user. KubeConfig and KubeConfigFile are for tools.
//
// # What goes wrong
//
// An operator meets conflicts, time-outs and outages in every cluster, and in few tests:
//
//   - Environment.Inject has requests answered with an error, late, or not at all, before or after they were carried
//     out: a write may be stored whose answer is lost.
//   - Environment.StopAPIServer and StartAPIServer are an outage: same data, same address.
//   - Environment.DropWatches ends watches, and Environment.Compact forgets the history that they would go on from, so
//     that clients get 410 Gone.
//   - WithPodBehavior has containers start late, fail, and lack their images. WithStorageDelay is a slow etcd.
//
// # What it asked
//
// Environment.Calls is a record of the operator's requests. Calls.Useless are writes that changed nothing,
// Calls.HotLoops one call again and again, Calls.FullLists reads of everything past the cache; Calls.Summary is a
// table.
//
// # Where to begin, again and again
//
// Environment.Snapshot keeps all objects at the cost of a pointer. Environment.Reset brings them back, in milliseconds,
// and FromSnapshot begins a further environment with them: set up once, and give each test a fork.
//
// # Time
//
// WithFakeTime has everything go by a clock that the test moves, and Environment.Settle returns when the control plane
// has come to rest.
//
// # From envtest
//
// Package testenv/envtest has the shape of controller-runtime's: a suite changes an import.
//
//	environment.go  Environment: start and stop     (server.go: the API server; parts.go: what stands on it)
//	options.go      which parts run
//	users.go        users, service accounts, kubeconfigs
//	crds.go         CustomResourceDefinitions       (package manifests reads them)
//	webhooks.go     the operator's webhooks
//	match.go        which requests are meant
//	faults.go       requests that go wrong          (traffic.go: where that happens)
//	calls.go        what was asked
//	outage.go       outages, dropped watches, lost history
//	snapshot.go     snapshots, resets, forks
//	clock.go        time, and rest
//	pods.go         what containers do
//	report.go       for the log of a test that failed
//	external.go     the same tests against another API server
package testenv
