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
// once, also in parallel tests. No file is downloaded and no port is fixed. When a test fails, a Report is written
// to its log: the objects that are not ready, and why. NewEnvironment is for suites that have no testing.T.
//
// # Users
//
// Environment.Config is an administrator's. RBAC is on, so that an operator can run with the same rights as in its
// cluster: Environment.ServiceAccount returns a configuration with a token of an account, Environment.User one for
// any user. KubeConfig and KubeConfigFile are for tools.
//
// # Faults
//
// An operator meets conflicts, time-outs and outages in every cluster, but in few tests:
//
//   - Environment.Inject makes requests fail, wait, or lose their answer, before or after they were carried out: a
//     write may be stored although its answer is lost.
//   - Environment.StopAPIServer and StartAPIServer simulate an outage: same data, same address.
//   - Environment.DropWatches ends watches, and Environment.Compact deletes the history that they would resume from,
//     so that clients get 410 Gone.
//   - WithPodBehavior makes containers start late, fail, or lack their images. WithStorageDelay simulates a slow etcd.
//
// # Requests
//
// Environment.Calls returns the operator's requests. Calls.Useless returns the writes without an effect,
// Calls.HotLoops the repeated calls, and Calls.FullLists the reads of all objects past the cache. Calls.Summary
// returns a table.
//
// # Snapshots
//
// Environment.Snapshot keeps all objects at the cost of a pointer. Environment.Reset restores them in milliseconds,
// and FromSnapshot starts further environments with them: set up once, and give each test a fork.
//
// # Time
//
// WithFakeTime makes all parts use a clock that the test moves, and Environment.Settle returns when the control
// plane is idle.
//
// # Moving from envtest
//
// Package testenv/envtest has the API of controller-runtime's package: a suite changes an import.
//
//	environment.go  Environment: start and stop     (server.go: the API server; parts.go: its clients)
//	options.go      the parts to run
//	users.go        users, service accounts, kubeconfigs
//	crds.go         CustomResourceDefinitions       (package manifests reads them)
//	webhooks.go     the operator's webhooks
//	match.go        Match: which requests an option or a fault is for
//	faults.go       Fault and Inject                (traffic.go: the middleware that applies them)
//	calls.go        the recorded requests
//	outage.go       outages, dropped watches, lost history
//	snapshot.go     snapshots, resets, forks
//	clock.go        fake time, and Settle
//	pods.go         the behavior of containers
//	report.go       the log of a failed test
//	external.go     the same tests against another API server
package testenv
