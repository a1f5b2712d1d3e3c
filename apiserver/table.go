package apiserver

import (
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// tableOf makes a meta.k8s.io/v1 Table of documents: what kubectl get prints.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
func tableOf(r *request, objects []*storage.Object, m metav1.ListMeta, columns bool) ([]byte, error) {
	t := metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
		ListMeta: m,
		Rows:     make([]metav1.TableRow, len(objects)),
	}
	if columns {
		t.ColumnDefinitions = r.res.Columns
	}
	include := metav1.IncludeObjectPolicy(r.query.Get("includeObject"))
	if errs := validation.ValidateTableOptions(&metav1.TableOptions{IncludeObject: include}); len(errs) > 0 {
		return nil, apierrors.NewBadRequest("Unable to convert to Table as requested: " + errs[0].Error())
	}
	for i, o := range objects {
		if err := r.wanted(i); err != nil {
			return nil, err
		}
		row, err := rowOf(r.res, o, include)
		if err != nil {
			return nil, err
		}
		t.Rows[i] = row
	}
	body, err := json.Marshal(&t)
	if err != nil {
		return nil, fmt.Errorf("encoding a table: %w", err)
	}
	return body, nil
}

func rowOf(res *api.Resource, o *storage.Object, include metav1.IncludeObjectPolicy) (metav1.TableRow, error) {
	obj, err := decode(res, o)
	if err != nil {
		return metav1.TableRow{}, err
	}
	row := metav1.TableRow{Cells: res.Cells(obj)}
	if res.RowConditions != nil {
		row.Conditions = res.RowConditions(obj)
	}
	switch include {
	case metav1.IncludeNone:
	case metav1.IncludeObject:
		if o, err = shown(res, o); err != nil {
			return row, err
		}
		row.Object = runtime.RawExtension{Raw: o.JSON}
	default:
		row.Object = runtime.RawExtension{Raw: partialOf(o)}
	}
	return row, nil
}
