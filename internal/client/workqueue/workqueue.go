// Package workqueue hands keys to workers that exist only while there is work.
//
// It has the rules of client-go's work queue: a key that is added several times is worked on once, no two workers have
// the same key at once, a key that is added while it is worked on comes again afterwards, keys are taken in the order
// in which they came, and a key that failed comes back after a delay that doubles. It exists beside client-go's for
// three reasons:
//
//   - An idle queue of client-go has two goroutines of its own and one for each worker that waits. A control plane in a
//     test has fifty queues with two hundred workers, and they are idle most of the time. This queue starts a worker
//     when a key comes, up to a limit, and the worker ends when no key is left. Keys that are delayed wait in a heap,
//     which has one timer.
//   - There are three sorts of delay. AddAfter waits for a duration from now, and AddAt for a moment that an object
//     names ("one hour after the Job has finished"), also if the machine's clock is set meanwhile. Both go by a clock
//     that is passed in, and which a test may move by hand. Retry is about a server that did not answer, or a cache
//     that was behind: it goes by real time, wherever the other clock stands.
//   - It reports whether work is left (Busy), delays that have passed included.
//
// The files:
//
//	queue.go    the queue and its workers
//	later.go    keys that wait for a time
//	metrics.go  the metrics of kube-controller-manager's work queues
package workqueue
