package main

import "github.com/spf13/pflag"

// authorizationFlags say who decides what an identity may do.
type authorizationFlags struct {
	modes []string
}

func (f *authorizationFlags) add(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.modes, "authorization-mode", []string{"Node", "RBAC"},
		"who decides what a user may do, in this order: AlwaysAllow, AlwaysDeny, Node, RBAC")
}
