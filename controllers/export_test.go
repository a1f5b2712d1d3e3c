package controllers

import (
	"path"
	"reflect"
	"runtime"
	"strings"
)

// Row is what tests know of a controller of the table.
type Row struct {
	Name string
	// Account is its ServiceAccount in kube-system; "" where it acts as system:kube-controller-manager.
	Account string
	Package string // its folder
}

// Rows are the table's.
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
