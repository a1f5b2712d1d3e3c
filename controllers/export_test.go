package controllers

import (
	"context"
	"crypto/x509"
	"path"
	"reflect"
	"runtime"
	"strings"

	"k8s.io/client-go/rest"
)

// Row describes a controller of the table to tests.
type Row struct {
	Name string
	// Account is its ServiceAccount in kube-system; "" if it acts as system:kube-controller-manager.
	Account string
	Package string // its folder
}

// Rows returns the rows of the table.
func Rows() []Row {
	rows := make([]Row, len(table))
	for i, e := range table {
		constructor := runtime.FuncForPC(reflect.ValueOf(e.construct).Pointer()).Name()
		rows[i] = Row{Name: e.name, Account: e.account(), Package: strings.TrimSuffix(path.Base(constructor), ".New")}
		if e.name == asMain {
			rows[i].Account = ""
		}
	}
	return rows
}

// ServerCertificate returns the certificate that the API server of a configuration presents.
func ServerCertificate(ctx context.Context, config *rest.Config) (*x509.Certificate, error) {
	c, err := connect(config)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.serverCertificate(ctx)
}
