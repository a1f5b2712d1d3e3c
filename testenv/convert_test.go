package testenv_test

import (
	"encoding/json"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// renameOars converts Ferries: the oars of v1 are called sweeps in v2.
func renameOars(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID,
		Result: metav1.Status{Status: metav1.StatusSuccess}}
	names := map[string]string{"example.com/v1": "oars", "example.com/v2": "sweeps"}
	for _, raw := range review.Request.Objects {
		var ferry map[string]any
		if err := json.Unmarshal(raw.Raw, &ferry); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		before, after := ferry["apiVersion"].(string), review.Request.DesiredAPIVersion
		if value, ok := ferry[names[before]]; ok {
			delete(ferry, names[before])
			ferry[names[after]] = value
		}
		ferry["apiVersion"] = after
		raw, _ := json.Marshal(ferry)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: raw})
	}
	_ = json.NewEncoder(w).Encode(review)
}
