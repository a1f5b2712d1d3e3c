package testenv

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
)

// ControllerSettings are those of the controllers of the control plane that config is for, for a test
// that runs controllers of its own beside it: with them they sign what its API server accepts.
func ControllerSettings(t testing.TB, config *rest.Config) controllers.Settings {
	t.Helper()
	of, ok := authorities.Load(config.Host)
	if !ok {
		t.Fatalf("testenv: no control plane of this package runs at %s", config.Host)
	}
	return of.(*users).settings
}

// ControllerIdentity is how such controllers act as themselves: controllers.Options.As.
func ControllerIdentity(t testing.TB, config *rest.Config) func(account string) (*rest.Config, error) {
	t.Helper()
	of, ok := authorities.Load(config.Host)
	if !ok {
		t.Fatalf("testenv: no control plane of this package runs at %s", config.Host)
	}
	return of.(*users).controller
}
