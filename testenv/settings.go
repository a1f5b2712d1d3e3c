package testenv

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
)

// ControllerSettings returns the settings of the controllers in the control plane that config leads to. A test that
// runs its own controllers beside it needs them, so that the API server accepts the signatures.
func ControllerSettings(t testing.TB, config *rest.Config) controllers.Settings {
	t.Helper()
	owner, ok := authorities.Load(config.Host)
	if !ok {
		t.Fatalf("testenv: no control plane of this package runs at %s", config.Host)
	}
	return owner.(*users).settings
}

// ControllerIdentity returns the function with which such controllers act as themselves: controllers.Options.As.
func ControllerIdentity(t testing.TB, config *rest.Config) func(account string) (*rest.Config, error) {
	t.Helper()
	owner, ok := authorities.Load(config.Host)
	if !ok {
		t.Fatalf("testenv: no control plane of this package runs at %s", config.Host)
	}
	return owner.(*users).controller
}
