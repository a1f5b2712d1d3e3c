package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"
)

// boundKinds are the kinds that a token may live and die with, and their versions.
var boundKinds = map[string]string{"Node": "v1", "Pod": "v1", "Secret": "v1"}

type tokenOptions struct {
	*session
	writing
	audiences []string
	lifetime  time.Duration
	bound     authenticationv1.BoundObjectReference
}

func newCreateToken(s *session) *cobra.Command {
	o := &tokenOptions{session: s}
	cmd := &cobra.Command{
		Use: "token SERVICE_ACCOUNT_NAME", Short: "Request a service account token", DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, _, err := nameAndCommand(cmd, args)
			if err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(contextOf(cmd), name)
		},
	}
	o.addPrintFlags(cmd)
	kinds := strings.Join(slices.Sorted(maps.Keys(boundKinds)), ", ")
	cmd.Flags().StringArrayVar(&o.audiences, "audience", nil, "Audience of the requested token. If unset, defaults to requesting a token for use with the Kubernetes API server. May be repeated to request a token valid for multiple audiences.")
	cmd.Flags().DurationVar(&o.lifetime, "duration", 0, "Requested lifetime of the issued token. If not set or if set to 0, the lifetime will be determined by the server automatically. The server may return a token with a longer or shorter lifetime.")
	cmd.Flags().StringVar(&o.bound.Kind, "bound-object-kind", "", "Kind of an object to bind the token to. Supported kinds are "+kinds+". If set, --bound-object-name must be provided.")
	cmd.Flags().StringVar(&o.bound.Name, "bound-object-name", "", "Name of an object to bind the token to. The token will expire when the object is deleted. Requires --bound-object-kind.")
	cmd.Flags().StringVar((*string)(&o.bound.UID), "bound-object-uid", "", "UID of an object to bind the token to. Requires --bound-object-kind and --bound-object-name. If unset, the UID of the existing object is used.")
	return cmd
}

func (o *tokenOptions) validate() error {
	_, known := boundKinds[o.bound.Kind]
	switch {
	case o.lifetime < 0:
		return errors.New("--duration must be greater than or equal to 0")
	case o.lifetime%time.Second != 0:
		return errors.New("--duration cannot be expressed in units less than seconds")
	case slices.Contains(o.audiences, ""):
		return errors.New("--audience must not be an empty string")
	case o.bound.Kind == "" && o.bound.Name != "":
		return errors.New("--bound-object-name can only be set if --bound-object-kind is provided")
	case o.bound.Kind == "" && o.bound.UID != types.UID(""):
		return errors.New("--bound-object-uid can only be set if --bound-object-kind is provided")
	case o.bound.Kind != "" && !known:
		return fmt.Errorf("supported --bound-object-kind values are %s", strings.Join(slices.Sorted(maps.Keys(boundKinds)), ", "))
	case o.bound.Kind != "" && o.bound.Name == "":
		return errors.New("--bound-object-name is required if --bound-object-kind is provided")
	}
	return nil
}

func (o *tokenOptions) run(ctx context.Context, account string) error {
	namespace, _, err := o.namespace()
	if err != nil {
		return err
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: o.audiences}}
	if o.lifetime > 0 {
		seconds := int64(o.lifetime / time.Second)
		request.Spec.ExpirationSeconds = &seconds
	}
	if o.bound.Kind != "" {
		o.bound.APIVersion = boundKinds[o.bound.Kind]
		request.Spec.BoundObjectRef = &o.bound
	}
	answer, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("failed to create token: %v", err)
	}
	if answer.Status.Token == "" {
		return errors.New("failed to create token: no token in server response")
	}
	if *o.print.OutputFormat != "" {
		return o.show(o.session, answer, "created")
	}
	fmt.Fprint(o.Out, answer.Status.Token)
	if printers.IsTerminal(o.verbatim.Out) {
		fmt.Fprintln(o.Out)
	}
	return nil
}
