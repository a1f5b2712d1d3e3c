package controller

import "sync"

// parallel bounds the concurrent requests of one reconciliation.
const parallel = 32

// SlowStart calls f for 0 to n-1, in parallel batches that double in size from one as long as all calls
// succeed, and stops after the first batch with a failure. So a quota or an admission plugin that rejects every
// pod gets one request, not five hundred. tried is the number of calls; err is the first failure of the batch.
func SlowStart(n int, f func(i int) error) (tried int, err error) {
	for batch := min(1, n); batch > 0; batch = min(2*batch, n-tried) {
		errs := make([]error, batch)
		InParallel(batch, func(i int) { errs[i] = f(tried + i) })
		tried += batch
		if err := FirstError(errs...); err != nil {
			return tried, err
		}
	}
	return tried, nil
}

// InParallel calls f for 0 to n-1, a bounded number of calls at once, and waits for all of them.
func InParallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, parallel) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// FirstError returns the first error that is not nil.
func FirstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
