// Package workqueue hands keys to workers that exist only while there is work.
//
// It follows the rules of client-go's work queue: a key that is added several times is worked on once, no two
// workers have the same key at once, a key that is added while it is worked on comes again afterwards, keys are
// taken in the order of their arrival, and a failed key comes back after a delay that doubles. It exists beside
// client-go's queue for three reasons:
//
//   - An idle queue of client-go has two goroutines of its own and one for each worker that waits. A control plane in a
//     test has fifty queues with two hundred workers, and they are idle most of the time. This queue starts a worker
//     when a key comes, up to a limit, and the worker ends when no key is left. Keys that are delayed wait in a heap,
//     which has one timer.
//   - There are three kinds of delay. AddAfter waits for a duration from now. AddAt waits for a moment that an object
//     names ("one hour after the Job has finished"), even if the machine's clock is set meanwhile. Both go by a clock
//     that is passed in, and that a test may move by hand. Retry is for a server that did not answer, or a cache that
//     was behind: it goes by real time, independently of the other clock.
//   - It reports whether work is left (Busy), including delays that have passed.
//
// # Concurrency
//
// One mutex guards a queue's state. Workers call the function of New without it, so that the function may use the
// queue. Timers never take the mutex in the call of a clock, because a clock may hold its own lock then; they start
// a goroutine that does. So the order of locks is: the queue's, then the clock's.
//
// The context of Start owns the workers. When it ends, waiting keys are dropped and running workers finish their
// key. Wait returns after the last of them.
//
// The files:
//
//	queue.go    the queue and its workers
//	later.go    keys that wait for a time: a heap and one timer
//	metrics.go  the metrics of kube-controller-manager's work queues
package workqueue
