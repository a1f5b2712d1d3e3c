package testenv

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/scheduler"
)

// startParts starts the clients of the API server that the options request, and waits for the Nodes.
func startParts(users *users, o options) (stop func() error) {
	ctx, cancel := context.WithCancel(o.logged())
	var (
		running  sync.WaitGroup
		mu       sync.Mutex
		failures error
	)
	// A part calls ready when it has started; until then it has work left.
	run := func(name string, f func(ready func()) error) {
		ready := o.parts.Add(func(int64) string { return name + ": being started" })
		running.Go(func() {
			defer ready()
			if err := f(ready); err != nil && ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				failures = errors.Join(failures, fmt.Errorf("testenv: the %s ended: %w", name, err))
			}
		})
	}
	if len(o.controllers) > 0 {
		run("controllers", func(ready func()) error {
			config, err := users.component("system:kube-controller-manager")
			if err != nil {
				return err
			}
			return controllers.Run(ctx, config, controllers.Options{
				Controllers: o.controllers, As: users.controller, Settings: users.settings, Log: o.log, Debug: o.debug,
				Clock: o.partsClock(), Quiescence: o.parts, Ready: ready,
			})
		})
	}
	if o.scheduler {
		run("scheduler", func(ready func()) error {
			config, err := users.component("system:kube-scheduler")
			if err != nil {
				return err
			}
			return scheduler.Run(ctx, config, scheduler.Options{Log: o.log, Clock: o.partsClock(),
				Quiescence: o.parts, Ready: ready})
		})
	}
	if o.nodes > 0 {
		there, ended := make(chan struct{}), make(chan struct{})
		run("nodes", func(ready func()) error {
			defer close(ended)
			return node.Run(ctx, nil, node.Options{
				Count: o.nodes, Identity: users.node, ClientCAs: users.clientCAs(), Log: o.log, Script: o.pods,
				Clock: o.partsClock(), Quiescence: o.parts, Ready: func() { ready(); close(there) },
			})
		})
		select {
		case <-there:
		case <-ended: // stop returns the error
		}
	}
	return func() error {
		cancel()
		running.Wait()
		return failures
	}
}
